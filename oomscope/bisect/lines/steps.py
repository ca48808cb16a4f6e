"""Finds every step of a line that was searched for its culprit, then inside the merges that steps came with.

What the search has measured is told to the step search first, so that nothing is asked twice. Where measurements differ
from probe to probe, each position that is asked about is measured ``MEASURED`` times, and a step is a difference of
means beyond the spread of one probe, which the ends show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from oomscope.bisect.lines.line import Known, Line
from oomscope.bisect.lines.merges import MergeOpener, brought_by, opened
from oomscope.bisect.results.result import StepRow
from oomscope.bisect.results.sections import StepsWanted, UnseenStretch, Waterfall
from oomscope.bisect.run.experiment import Experiment, OutOfTimeError
from oomscope.bisect.search.line import Search, ahead
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.search.repeats import Noise, ProbeSpread
from oomscope.bisect.search.steps import StepSearch, Threshold
from oomscope.bisect.vcs.repository import Commit
from oomscope.errors import GitError
from oomscope.units import Bytes, format_size

MEASURED = 3
"""Measurements of each position that is asked about, where they differ from probe to probe."""


@dataclass
class StepWalk:
    """A search for the steps of one line.

    Args:
        wanted: which steps.
        opener: opens the merges that steps came with; None leaves them closed.
        noise: how sure to be that a step is not noise; None where measurements repeat exactly.
    """

    wanted: StepsWanted
    opener: MergeOpener | None = None
    noise: Noise | None = None
    _unseen: list[UnseenStretch] = field(default_factory=list)
    _known: Known = field(default_factory=dict)
    _is_complete: bool = True
    _threshold: Threshold = field(default_factory=Threshold)
    _spread: ProbeSpread | None = None
    _looks: int = 0

    def walk(self, line: Line) -> tuple[tuple[StepRow, ...], Waterfall] | None:
        """Return the rows from one end of ``line`` to the other, and how they were found.

        They sum to the difference of the ends; what lies below the threshold is the last one, where there is any.
        None where an end was not measured.
        """
        start, end = line.measured(0), line.measured(line.last)
        if start is None or end is None:
            return None
        is_real = any(result.backend == "cuda" for result in line.results.values())
        default = Threshold.of(0) if self.noise is not None and is_real else Threshold()
        self._threshold = self.wanted.threshold or default
        self._looks = self.wanted.looks
        rows = self._rows(line)
        start, end = line.measured(0) or start, line.measured(line.last) or end
        spread = self._spread
        rows = self._with_merges(line, rows)
        rest = end - start - sum((row.delta for row in rows), start=Bytes())
        if not rest.is_nothing:
            label = below(self._threshold, spread, is_reserved_known=rest.reserved_bytes is not None)
            rows = (*rows, StepRow(commit=None, label=label, delta=rest))
        if bounds := sum(record.is_lower_bound for record in line.prober.records):
            runs = "1 run" if bounds == 1 else f"{bounds} runs"
            line.prober.note(
                f"{runs} failed before the peak was known: their bytes are lower bounds, steps beside them inexact"
            )
        found = Waterfall(
            threshold=self._threshold,
            start=start,
            end=end,
            unseen=tuple(self._unseen),
            is_complete=self._is_complete,
            spread=spread,
        )
        return rows, found

    def _rows(self, line: Line) -> tuple[StepRow, ...]:
        """Return the steps between the ends of ``line``, both measured."""
        if line.last == 0:
            return ()
        try:
            for end in (0, line.last):
                self._repeat(line, end)
        except OutOfTimeError:
            self._is_complete = False
        first, final = line.measured(0) or Bytes(), line.measured(line.last) or Bytes()
        state = StepSearch.over(line.last, first, final, self._least(line)).looking(self._looks)
        if self.noise is None:
            for position in line.records:
                state = state.with_answer(position, line.measured(position))
        anew = self.noise is not None
        try:
            while self._is_complete and (wanted := state.wanted) is not None:
                if wanted not in line.records:
                    line.probe(wanted, "step", partial(_ahead, line, state, anew=anew), anew=anew)
                self._repeat(line, wanted)
                state = state.with_answer(wanted, line.measured(wanted))
        except OutOfTimeError:
            self._is_complete = False
        self._looks = state.looks
        self._known |= line.known
        self._unseen += [
            UnseenStretch(
                since=line.commit(step.after).hash, until=line.commit(step.at).hash, commits=step.at - step.after
            )
            for step in state.unseen
        ]
        return tuple(line.row(step) for step in state.steps)

    def _repeat(self, line: Line, position: int) -> None:
        """Measure ``position`` again until it was measured ``MEASURED`` times; without noise do nothing."""
        wanted = min(MEASURED, self.noise.repeats) if self.noise is not None else 0
        while 0 < len(line.samples(position)) < wanted:
            before = len(line.samples(position))
            line.probe(position, "step", lambda: (line.again(position, later=1),), anew=True)
            if len(line.samples(position)) == before:  # nothing was measured
                return

    def _least(self, line: Line) -> Threshold:
        """Return what two means differ by at most to count as equal: the threshold, or the spread if that is more."""
        if self.noise is None:
            return self._threshold
        if self._spread is None:
            self._spread = ProbeSpread.of([line.samples(position) for position in line.records])
        comparisons = 2 * math.ceil(math.log2(line.last + 1)) + 1
        confidence = 1 - (1 - self.noise.confidence) / comparisons
        return self._threshold.raised_to(self._spread.limit(min(MEASURED, self.noise.repeats), confidence))

    def _with_merges(self, line: Line, rows: tuple[StepRow, ...]) -> tuple[StepRow, ...]:
        """Return ``rows`` with what each merge among them brought in ahead of what is left of it."""
        if self.opener is None:
            return rows
        for row in rows:
            position = line.position(row.commit) if row.commits == 1 else None
            if position is None or not line.commit(position).is_merge or line.is_end_of_branch(position):
                continue
            brought, beside = self._brought(self.opener, line, position)
            rows = self._significant(opened(rows, line.commit(position).hash, brought, beside))
        return rows

    def _brought(self, opener: MergeOpener, line: Line, position: int) -> tuple[list[StepRow], Bytes]:
        """Return the steps of all branches of the merge at ``position``, and the sum of what is below the threshold."""
        merge, brought, beside = line.commit(position), list[StepRow](), Bytes()
        for parent in range(len(merge.parents)):
            try:
                branch = opener.branch(line, position, parent)
            except GitError as error:
                line.prober.note(f"a branch merged by {merge.short} was not searched: {error}")
                continue
            if branch is None or branch.is_unchanged or not self._measure_ends(branch, merge):
                continue
            inside = self._with_merges(branch, self._rows(branch))
            brought += inside
            own = sum((row.delta for row in inside if row.commit != merge.hash), start=Bytes())
            beside += brought_by(branch) - own
        return brought, beside

    def _measure_ends(self, branch: Line, merge: Commit) -> bool:
        """Measure the beginning and the tip of ``branch``, and return whether its steps can be known."""
        branch.recall(self._known)
        try:
            for position in (0, branch.tip):
                if position not in branch.records:
                    branch.probe(position, "good end", lambda: map(branch.experiment, branch.checked))
        except OutOfTimeError:
            self._is_complete = False
            return False
        if branch.measured(0) is None:
            why = branch.records[0].reason
            branch.prober.note(f"a branch merged by {merge.short} was not searched: its start is untestable ({why})")
            return False
        return True

    def _significant(self, rows: Sequence[StepRow]) -> tuple[StepRow, ...]:
        """Return the rows above the threshold, and above what single probes differ by."""
        spread = self._spread.limit(1, self.noise.confidence) if self._spread and self.noise else Threshold.of(0)
        least = self._threshold.raised_to(spread)
        return tuple(row for row in rows if least.is_exceeded_by(row.delta))


def _ahead(line: Line, state: StepSearch, *, anew: bool) -> Iterator[Experiment | Untestable]:
    """Yield what a search for steps is going to measure: in each range that differs, one half at least is split again.

    Where none differs, the looks that follow as long as they find nothing.
    """
    measured_by = line.again if anew else line.experiment
    if not state.splitting:
        yield from map(measured_by, state.looks_ahead())
    wanted = ahead(
        state.splitting,
        lambda range_: range_.wanted,
        Search.with_answer,
        lambda position: None if position not in line.records else line.records[position].answer,
    )
    yield from map(measured_by, wanted)


def below(threshold: Threshold, spread: ProbeSpread | None = None, *, is_reserved_known: bool = True) -> str:
    """Return the label of the row of small differences, where ``spread`` is that of a probe."""

    def both(requested: float, overhead: float) -> str:
        beside = f" and {format_size(round(overhead))} overhead" if is_reserved_known else ""
        return f"{format_size(round(requested))} requested{beside}"

    smaller = f"smaller differences, of at most {both(threshold.requested_bytes, threshold.overhead_bytes)} each"
    if spread is None:
        return smaller
    within = f"differences within the spread of a probe, {both(spread.requested_bytes, spread.overhead_bytes)}"
    return within if threshold == Threshold.of(0) else f"{within}; {smaller}"
