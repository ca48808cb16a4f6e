"""Steps without those that changed nothing: what a search measured on its way to the culprit is mostly the same."""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.bisect.measured import Bytes
from oomscope.bisect.result import StepRow
from oomscope.report.words import count

FEWEST = 2
"""Rows without a change from which on they are one."""


def folded(steps: Sequence[StepRow], culprit: str | None = None) -> tuple[StepRow, ...]:
    """Return the steps that changed bytes, in their order, and a last row for all that did not; the sums stay.

    Args:
        steps: rows from good to bad.
        culprit: hash of a commit whose row stays, whatever it changed.
    """
    idle = [step for step in steps if step.delta.is_nothing and (culprit is None or step.commit != culprit)]
    if len(idle) < FEWEST:
        return tuple(steps)
    commits = count(sum(step.commits for step in idle), "commit")
    label = f"no change: {count(len(idle), 'further row')}, over {commits}"
    nothing = Bytes(reserved_bytes=idle[0].delta.reserved_bytes)
    return (*(step for step in steps if step not in idle), StepRow(commit=None, label=label, delta=nothing))
