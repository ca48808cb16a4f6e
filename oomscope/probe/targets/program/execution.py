"""Starts a program, follows the receipts of its processes, and ends it with everything that it started.

A process that the probe has seen enough of is asked to end, which it may take some seconds for: a program that runs on
all the same is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from oomscope.errors import TargetError
from oomscope.probe.machine.processes import Family, start_family
from oomscope.probe.targets.program.receipt import Receipt, read_receipts

GRACE_S: Final = 10.0
"""What a process that was asked to end, and then the rest of the program, may take for it."""
_LOOK_S: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended."""

    status: int
    """Of the process that was started: its exit status, negative for a signal."""
    killed: bool
    """It went on after it was asked to end."""
    overran: bool = False
    """It took longer than it was given, and was killed."""
    receipts: tuple[Receipt, ...]
    """What its processes left, the oldest first."""
    seconds: float


def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    told: Callable[[int], None],
    grace_s: float = GRACE_S,
    limit_s: float = float("inf"),
    cwd: Path | None = None,
) -> Ended:
    """Run ``argv`` to its end, or until its processes have seen enough, and return how it ended.

    Standard output and error are those of this process. Nothing that it started is left when this returns.

    Args:
        argv: the program and its arguments.
        environment: its variables, with those that let it be measured.
        folder: where its processes leave their receipts.
        told: called with the complete iterations of the process that is farthest, whenever there are more.
        grace_s: seconds from the moment that a process was asked to end.
        limit_s: seconds that the program may take in all.
        cwd: where to run it; None for here.

    Raises:
        TargetError: it cannot be started.
    """
    began = time.monotonic()
    family = start_family(argv, environment=environment, cwd=cwd)
    try:
        unfinished = _await(family, folder, told, grace_s=grace_s, limit_s=limit_s)
    finally:
        ended = family.kill()
    if family.error:
        raise TargetError(f"{argv[0]} cannot be run: {family.error}", remedy="see that the checkout has it")
    return Ended(
        status=ended.status,
        killed=unfinished == "asked to end",
        overran=unfinished == "overran",
        receipts=tuple(read_receipts(folder)),
        seconds=time.monotonic() - began,
    )


def _await(
    family: Family, folder: Path, told: Callable[[int], None], *, grace_s: float, limit_s: float
) -> Literal["", "asked to end", "overran"]:
    """Wait until the program has ended, and return an empty string, or why it is not waited for any longer."""
    stopped, iterations, deadline = 0, 0, float("inf")
    last = time.monotonic() + limit_s
    while not family.await_end(time.monotonic() + _LOOK_S):
        receipts = read_receipts(folder)
        farthest = max((receipt.iterations for receipt in receipts), default=0)
        if farthest > iterations:
            iterations = farthest
            told(iterations)
        asked = sum(receipt.state == "stopped" for receipt in receipts)
        if asked > stopped:
            stopped, deadline = asked, time.monotonic() + grace_s
        if time.monotonic() > deadline:
            return "asked to end"
        if time.monotonic() > last:
            return "overran"
    return ""
