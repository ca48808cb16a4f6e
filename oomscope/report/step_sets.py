"""Steps that came with one of several commits, and why these cannot be told apart: for terminal and page alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oomscope.bisect.results.result import BisectResult, StepRow
from oomscope.bisect.search.line import Answer
from oomscope.report.sentences import count


class StepSet(NamedTuple):
    """A step over several commits that splitting has left."""

    step: StepRow
    reason: str
    """Why it was not split further."""


def step_sets(result: BisectResult) -> Iterator[StepSet]:
    """Yield the steps that no probe could split; none where steps were not searched for.

    What the deadline left unsplit is none of them.
    """
    if result.waterfall is None:
        return
    answered = {probe.commit for probe in result.probes if probe.answer is not Answer.UNTESTABLE}
    untestable = {probe.commit for probe in result.untestable} - answered
    for step in result.steps:
        if step.commit is None or step.commits == 1:
            continue
        inside = _between(result, step)
        silent = len(inside & untestable)
        if silent == step.commits - 1:
            what = "the commit" if silent == 1 else f"none of the {silent} commits"
            yield StepSet(step, f"{what} between {'cannot' if silent == 1 else 'can'} be tested")
        elif result.waterfall.is_complete:
            broken = f"; {count(silent, 'commit')} between cannot be tested" if silent else ""
            yield StepSet(step, f"no commit between stands clear of the spread of a probe{broken}")


def _between(result: BisectResult, step: StepRow) -> set[str]:
    """Return the names of the commits after the one before ``step`` and before the one that closes it."""
    for line in result.lines:
        if step.since in line.position and step.commit in line.position:
            places = line.places[line.position[step.since] + 1 : line.position[step.commit]]
            return {place.commit for place in places}
    return set()
