"""``oomscope doctor`` and ``--version``: what of this machine can be used, and what is installed."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import click

import oomscope
from oomscope.cli.options import json_option
from oomscope.cli.terminal.output import print_json, print_report
from oomscope.errors import ExitCode

SCHEMA_VERSION = 1


@click.command(short_help="Check which parts of this machine can be used.")
@json_option
def doctor(*, as_json: bool) -> ExitCode:
    """Check torch, CUDA, driver, cards, allocator settings, git, directories, host and extras.

    Each missing part is listed with what it disables and what to do. Nothing is written, and no context is left on a
    card. The exit code is 0 where a probe can run, also on a virtual card, and 5 where none can.

    \b
    oomscope doctor
    oomscope doctor --json
    """
    from oomscope.doctor.examine import examine

    diagnosis = examine()
    if as_json:
        print_json(diagnosis.to_json())
    else:
        from oomscope.report.commands.doctor import doctor_report

        print_report(doctor_report(diagnosis))
    return diagnosis.exit_code


def version_document() -> dict[str, Any]:
    """Return the versions of oomscope, Python and torch, and the backends at hand; torch is not imported."""
    from oomscope.probe.machine.fingerprint import version_of

    torch = version_of("torch")
    return {
        "schema_version": SCHEMA_VERSION,
        "oomscope": oomscope.__version__,
        "python": platform.python_version(),
        "torch": torch,
        "backends": available_backends(torch),
    }


def version_line(document: dict[str, Any]) -> str:
    """Return the same for people."""
    torch = f"torch {document['torch']}" if document["torch"] else "torch not installed"
    backends = ", ".join(document["backends"]) or "none"
    return f"oomscope {document['oomscope']} (Python {document['python']}, {torch}, backends: {backends})"


def available_backends(torch: str | None, devices: Path = Path("/dev")) -> list[str]:
    """Return the backends that a probe could use here, ``auto``'s choice first.

    ``cuda`` needs a CUDA build of torch and the driver's device files; a probe finds out whether the card works.
    """
    from oomscope.probe.machine.backends import has_virtual_card
    from oomscope.virtual.loading import has_gpu

    if torch is None:
        return []
    has_cuda = "+cpu" not in torch and has_gpu(devices)
    return [*(["cuda"] if has_cuda else []), *(["virtual"] if has_virtual_card() else [])]
