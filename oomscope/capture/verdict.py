"""Prints what ``oomscope explain`` says of a snapshot, before the process that ran out of memory ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from oomscope.capture.settings import VARIABLE
from oomscope.errors import OomscopeError

PYTHON: Final = "OOMSCOPE_RECORD_PYTHON"
"""The interpreter that ``oomscope record`` runs under; the program's own may lack what an explanation needs."""
LONGEST_S: Final = 120.0
"""A snapshot of some million events takes half a minute."""


def print_verdict(snapshot: Path, environment: Mapping[str, str]) -> None:
    """Print to standard error what ``snapshot`` shows, in eight lines; nothing where no interpreter is named.

    Raises:
        OomscopeError: the explanation failed or took longer than :data:`LONGEST_S`.
    """
    python = environment.get(PYTHON)
    if not python:
        return
    quiet = {name: text for name, text in environment.items() if not name.startswith(VARIABLE)}
    command = [python, "-P", "-m", "oomscope", "explain", str(snapshot), "--quiet"]
    try:
        done = subprocess.run(
            command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OomscopeError(
            f"it took more than {LONGEST_S:.0f} s",
            where=f"oomscope explain {snapshot}",
            remedy="run it once more by hand",
        ) from None
    if done.returncode:
        last = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()][-1]
        raise OomscopeError(last, where=f"oomscope explain {snapshot}", remedy="run it once more by hand")
    sys.stderr.write(done.stdout)
    sys.stderr.flush()
