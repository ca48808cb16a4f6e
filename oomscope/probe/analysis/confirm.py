"""Runs a program again, from start to end, under allocator settings that may cure its fragmentation.

A replay knows the allocations up to the failure; whether the rest of the program passes under a setting, only running
it shows. Settings are run in order, within limits of number and time: the first candidates in any case, the further
ones until one of all leaves room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from oomscope.errors import AllocatorConfError
from oomscope.snapshot.judge.confirmed import is_tight
from oomscope.snapshot.replay.fixes import Rules, merged
from oomscope.snapshot.replay.gaps import request_as_seen
from oomscope.snapshot.verdict_types import FixTried

RUNS: Final = 14
"""Whole runs at most."""
SECONDS: Final = 60.0
"""No run begins that is expected to end later, while no setting is known that leaves room; the first always begins."""
SECONDS_IF_CURED: Final = 10.0
"""The same once such a setting is known: the rest is for the table."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Where and for how much memory a run failed."""

    where: str
    """``backward of iteration 1``."""
    requested_bytes: int
    free_bytes: int
    """What the allocator could still take from the card."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a whole run under one configuration ended."""

    peak_reserved_bytes: int = 0
    retries: int = 0
    failed: Failed | None = None
    """The allocator refused a request, and the program ended."""
    error: str = ""
    """Why the run tells nothing, in one line: the program failed otherwise, or did not begin."""


class Rerun(Protocol):
    """Runs a job whole, on the same card, under another configuration of the allocator."""

    def __call__(self, conf: str) -> Ran:
        """Return how it went under ``conf``, the whole PYTORCH_ALLOC_CONF."""
        ...


@dataclass(frozen=True, kw_only=True)
class Card:
    """The card of all runs, in bytes."""

    total_bytes: int
    available_bytes: int
    """D: what the caching allocator may hold."""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What the runs showed."""

    rows: tuple[FixTried, ...]
    """One a run, in order."""
    untried: tuple[str, ...]
    """Settings that the limits left no room for."""


def confirm(
    rerun: Rerun,
    first: Sequence[str],
    further: Sequence[str],
    *,
    rules: Rules,
    card: Card,
    announce: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Confirmation:
    """Run the program under each of ``first``, then under ``further`` until one leaves room.

    Args:
        rerun: runs the program.
        first: settings to add to those of ``rules``, the most wanted first.
        further: settings for the case that none of ``first`` leaves room.
        rules: the allocator of the run that failed.
        card: what all runs have.
        announce: is told how many runs were made, before each.
        clock: seconds.
    """
    rows: list[FixTried] = []
    untried: list[str] = []
    limits = _Limits(clock)
    for name in (*first, *further):
        is_cured = any(row.survives and not row.is_tight for row in rows)
        if is_cured and name in further:
            break
        if not limits.allow(SECONDS_IF_CURED if is_cured else SECONDS):
            untried.append(name)
            continue
        announce(len(rows))
        conf = merged(rules.conf, name)
        rows.append(_row(name, conf, limits.timed(partial(rerun, conf)), rules, card))
    return Confirmation(rows=tuple(rows), untried=tuple(untried))


class _Limits:
    """Number and time of the runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._longest = 0.0
        self._runs = 0

    def allow(self, seconds: float) -> bool:
        """Return whether one more run may begin that is to end within ``seconds`` of the first one's beginning."""
        expected_end = self._clock() - self._began + self._longest
        return self._runs == 0 or (self._runs < RUNS and expected_end <= seconds)

    def timed(self, run: Callable[[], Ran]) -> Ran:
        """Make a run, and remember how long the longest took."""
        began = self._clock()
        ran = run()
        self._longest = max(self._longest, self._clock() - began)
        self._runs += 1
        return ran


def _row(name: str, conf: str, ran: Ran, rules: Rules, card: Card) -> FixTried:
    margin = 0 if ran.error else card.available_bytes - ran.peak_reserved_bytes
    survives = not ran.error and ran.failed is None
    if ran.failed is not None:
        margin = ran.failed.free_bytes - _piece(ran.failed.requested_bytes, conf, rules)
    return FixTried(
        name=name,
        conf=conf,
        how="run",
        survives=survives,
        peak_reserved_bytes=ran.peak_reserved_bytes,
        margin_bytes=margin,
        is_tight=survives and is_tight(margin, card.total_bytes),
        retries=ran.retries,
        failed_in=ran.failed.where if ran.failed else "",
        note=ran.error,
    )


def _piece(requested_bytes: int, conf: str, rules: Rules) -> int:
    """Return what the allocator takes of the card for a request: a whole segment, or whole pages."""
    try:
        settings = Rules(conf=conf, torch_version=rules.torch_version).settings()
    except AllocatorConfError:
        return requested_bytes
    return request_as_seen(settings, requested_bytes, 0).taken_from_driver
