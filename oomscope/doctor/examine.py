"""Runs every check; torch is imported in a process of its own meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from oomscope.doctor.allocator_check import allocator_checks
from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.doctor.machine_checks import gpu_checks, host_check, place_checks
from oomscope.doctor.package_checks import git_checks, package_checks, version_of
from oomscope.doctor.torch_checks import PART, torch_checks, virtual_card_check
from oomscope.doctor.torch_import import TorchImport


def examine(environment: Mapping[str, str] = os.environ, folder: Path = Path()) -> Diagnosis:
    """Look at this machine, and leave nothing behind on it.

    Args:
        environment: the variables.
        folder: where the user stands.
    """
    with TorchImport() as importing:
        packages = _looked("oomscope", package_checks)
        virtual = _looked(PART, lambda: [virtual_card_check()])
        cards = _looked("NVIDIA driver", lambda: gpu_checks(environment))
        rest = [
            *_looked("allocator settings", lambda: allocator_checks(environment, version_of("torch"))),
            *_looked("git", lambda: git_checks(folder)),
            *_looked("cache", lambda: place_checks(environment)),
            *_looked("host", lambda: [host_check()]),
        ]
        torch = _looked("torch", lambda: torch_checks(importing.outcome()), State.FAILS)
    itself, *extras = packages
    return Diagnosis((itself, *torch, *virtual, *cards, *rest, *extras))


def _looked(part: str, checks: Callable[[], Iterable[Check]], unseen: State = State.MISSING) -> list[Check]:
    """Return what ``checks`` yields; where looking itself goes wrong, that is a row as well.

    Args:
        part: what is looked at.
        checks: looks.
        unseen: how a part stands that cannot be looked at.
    """
    found: list[Check] = []
    try:
        for check in checks():
            found.append(check)  # noqa: PERF402 - what came before an error counts
    except Exception as error:  # noqa: BLE001 - one odd part must not hide the others
        said = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = "please report it, with this line"
        found.append(Check(part=part, state=unseen, found=f"cannot be checked ({said})", remedy=remedy))
    return found
