"""git, and whether it trusts the repository in which the user stands."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from oomscope.doctor.check import Check, State
from oomscope.files import real_path

OLDEST = (2, 31)
"""The first git that takes settings from GIT_CONFIG_COUNT, by which a search keeps the user's own out."""
_TIMEOUT_S = 10.0
_DUBIOUS = "dubious ownership"


def git_checks(folder: Path) -> Iterator[Check]:
    """Yield the checks of git, as it stands in ``folder``."""
    disables = "bisect over commits, gate run --bisect"
    said = _run(["git", "--version"], folder)
    if said is None:
        yield Check(
            part="git", state=State.MISSING, found="there is no git on PATH", disables=disables, remedy="install git"
        )
        return
    version = re.search(r"\d+\.\d+(\.\d+)*", said.stdout)
    if version is None:
        found = (said.stdout or said.stderr).strip().partition("\n")[0] or f"status {said.returncode}"
        yield Check(
            part="git", state=State.MISSING, found=f"git does not run: {found}", disables=disables, remedy="mend git"
        )
        return
    major, minor = (int(number) for number in version[0].split(".")[:2])
    if (major, minor) < OLDEST:
        remedy = f"install git {OLDEST[0]}.{OLDEST[1]} or newer"
        yield Check(part="git", state=State.MISSING, found=f"git {version[0]}", disables=disables, remedy=remedy)
        return
    yield Check(part="git", state=State.OK, found=f"git {version[0]}", values={"version": version[0]})
    where = _run(["git", "rev-parse", "--show-toplevel"], folder)
    if where is not None and where.returncode and _DUBIOUS in where.stderr:
        yield Check(
            part="git",
            state=State.NOTE,
            found="this repository belongs to another user",
            disables="git refuses it (safe.directory); bisect and gate read what they were told to, commands that they "
            "run may not",
            remedy=f"git config --global --add safe.directory {shlex.quote(_refused(where.stderr, folder))}",
        )


def _refused(said: str, folder: Path) -> str:
    """Return the repository that git names, to the folder of which its trust is bound; else where the user stands."""
    named = re.search(rf"{_DUBIOUS} in repository at '(.+)'", said)
    return named[1] if named is not None else str(real_path(folder))


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Return what git said; None where there is none, or it does not answer."""
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
