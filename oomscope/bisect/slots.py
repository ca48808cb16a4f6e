"""Where the checkout of a probe stands: one place for each that may run at once, or a new place for each probe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.process.tempdirs import remove_tree


@dataclass
class Slots:
    """Places for checkouts, which threads may share.

    Args:
        are_reused: whether one checkout after the other is laid out at the place of a slot, which is quick: only what
            differs is written. Else every probe has a new one, which is removed after it.
    """

    are_reused: bool = True
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def lent(self, job: ProbeJob, slot: int) -> Iterator[ProbeJob]:
        """Yield ``job`` with the checkout of ``slot``; the first slot's is that of the job, where it is reused."""
        target = job.target
        if not isinstance(target, CheckoutTarget) or (self.are_reused and slot == 0):
            yield job
            return
        if self.are_reused:
            yield replace(job, target=target.at(f"{target.repo}-{slot + 1}"))
            return
        place = f"{target.repo}-{slot + 1}-{next(self._numbers)}"
        try:
            yield replace(job, target=target.at(place))
        finally:
            remove_tree(Path(place))
