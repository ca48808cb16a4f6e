"""Steps without those too small to matter: what a search measured on its way to the culprit is mostly the same."""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.bisect.results.result import StepRow
from oomscope.bisect.search.measured import Bytes
from oomscope.report.sentences import count
from oomscope.units import MiB, format_size

FEWEST = 2
"""Small rows from which on they are one."""
SMALL = MiB
"""Steps that change less are small, where another one changes a hundred times as much."""


def folded(steps: Sequence[StepRow], culprit: str | None = None) -> tuple[StepRow, ...]:
    """Return the steps that matter, in their order, and a last row that sums all others.

    Args:
        steps: rows from good to bad.
        culprit: hash of a commit whose row stays, whatever it changed.
    """
    least = min(SMALL, max(map(_size, steps), default=0) // 100)
    small = [step for step in steps if _size(step) <= least and (culprit is None or step.commit != culprit)]
    if len(small) < FEWEST:
        return tuple(steps)
    rows = f"{count(len(small), 'further row')}, over {count(sum(step.commits for step in small), 'commit')}"
    what = f"at most {format_size(least)} each" if any(map(_size, small)) else "no change"
    total = sum((step.delta for step in small), start=Bytes(reserved_bytes=small[0].delta.reserved_bytes and 0))
    return (
        *(step for step in steps if step not in small),
        StepRow(commit=None, label=f"{what}: {rows}", delta=total),
    )


def _size(step: StepRow) -> int:
    return max(abs(step.delta.requested_bytes), abs(step.delta.reserved_bytes or 0))
