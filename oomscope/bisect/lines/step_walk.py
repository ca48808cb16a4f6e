"""Finds every step of a line that was searched for its culprit, then inside the merges that steps came with.

What the search has measured on its way is told to the step search first, so that nothing is asked twice. Where
measurements differ from probe to probe, each position that is asked about is measured ``MEASURED`` times, and a step is
a difference of means that stands clear of the spread of one probe, which the ends show. What is left of a merge when
the steps that it brought in are taken off stays its own, if it is more than the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from oomscope.bisect.lines.merges import BranchSearch, MergeOpener, opened
from oomscope.bisect.lines.probed_line import Known, ProbedLine
from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.result import StepRow
from oomscope.bisect.results.sections import StepsWanted, UnseenStretch, Waterfall
from oomscope.bisect.run.deadline import OutOfTimeError
from oomscope.bisect.run.experiment import Experiment, Untestable
from oomscope.bisect.search.line import Search
from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.speculation import ahead
from oomscope.bisect.search.spread import ProbeSpread
from oomscope.bisect.search.steps import ByteStep, StepSearch, Threshold
from oomscope.errors import GitError
from oomscope.units import format_size

MEASURED = 3
"""Measurements of each position that is asked about, where they differ from probe to probe."""


@dataclass
class StepWalk:
    """A search for the steps of one line.

    Args:
        wanted: which steps.
        opener: opens the merges that steps came with; None leaves them closed.
        noise: how sure to be that a step is none of the measurements' own spread; None where they have none.
    """

    wanted: StepsWanted
    opener: MergeOpener | None = None
    noise: Noise | None = None
    _unseen: list[UnseenStretch] = field(default_factory=list)
    _known: Known = field(default_factory=dict)
    _is_complete: bool = True
    _threshold: Threshold = field(default_factory=Threshold)
    _spread: ProbeSpread | None = None

    def walk(self, search: ProbedLine) -> tuple[tuple[StepRow, ...], Waterfall] | None:
        """Return the rows from one end of ``search`` to the other, and how they were found.

        They sum to the difference of the ends; what lies below the threshold is the last one, where there is any.
        None where an end was not measured.
        """
        start, end = search.measured(0), search.measured(search.track.last)
        if start is None or end is None:
            return None
        is_real = any(result.backend == "cuda" for result in search.results.values())
        default = Threshold.of(0) if self.noise is not None and is_real else Threshold()
        self._threshold = self.wanted.threshold or default
        rows, looks = self._rows(search, self.wanted.looks)
        start, end = search.measured(0) or start, search.measured(search.track.last) or end
        spread = self._spread
        rows = self._with_merges(search, rows, looks)
        rest = end - start - sum((row.delta for row in rows), start=Bytes())
        if not rest.is_nothing:
            is_reserved_known = rest.reserved_bytes is not None
            label = below(self._threshold, spread, is_reserved_known=is_reserved_known)
            rows = (*rows, StepRow(commit=None, label=label, delta=rest))
        self._warn_of_bounds(search)
        found = Waterfall(
            threshold=self._threshold,
            start=start,
            end=end,
            unseen=tuple(self._unseen),
            is_complete=self._is_complete,
            spread=spread,
        )
        return rows, found

    def _warn_of_bounds(self, search: ProbedLine) -> None:
        if bounds := sum(record.is_lower_bound for record in search.prober.records):
            runs = "1 run" if bounds == 1 else f"{bounds} runs"
            search.prober.note(
                f"{runs} failed before the peak was known: such bytes are lower bounds, steps beside them inexact"
            )

    def _rows(self, search: ProbedLine, looks: int) -> tuple[tuple[StepRow, ...], int]:
        """Return the steps between the ends of ``search``, both measured, and what is left of ``looks``."""
        if search.track.last == 0:
            return (), looks
        state = self._split(search, looks)
        self._unseen += [_stretch(search, step) for step in state.unseen]
        self._known |= search.known
        return tuple(search.row(step) for step in state.steps), state.looks

    def _split(self, search: ProbedLine, looks: int) -> StepSearch:
        last = search.track.last
        try:
            for end in (0, last):
                self._repeat(search, end)
        except OutOfTimeError:
            self._is_complete = False
        first, final = search.measured(0) or Bytes(), search.measured(last) or Bytes()
        state = StepSearch.over(last, first, final, self._least(search)).looking(looks)
        if self.noise is None:
            for position in search.records:
                state = state.told(position, search.measured(position))
        try:
            while self._is_complete and (wanted := state.wanted) is not None:
                search.prober.foresee(partial(_ahead, search, state, anew=self.noise is not None))
                if wanted not in search.records:
                    search.probe(wanted, "step", anew=self.noise is not None)
                self._repeat(search, wanted)
                state = state.told(wanted, search.measured(wanted))
        except OutOfTimeError:
            self._is_complete = False
        return state

    def _repeat(self, search: ProbedLine, position: int) -> None:
        """Measure ``position`` again until it was measured ``MEASURED`` times; without noise do nothing.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        wanted = min(MEASURED, self.noise.repeats) if self.noise is not None else 0
        while 0 < len(search.samples(position)) < wanted:
            search.prober.foresee(lambda: (search.again(position, later=1),))
            search.probe(position, "step", anew=True)
            if search.answers[position].latest is None:
                return

    def _least(self, search: ProbedLine) -> Threshold:
        """Return what two means differ by at most to count as equal: the threshold, or the spread if that is more."""
        if self.noise is None:
            return self._threshold
        if self._spread is None:
            self._spread = ProbeSpread.of([search.samples(position) for position in search.records])
        comparisons = 2 * math.ceil(math.log2(search.track.last + 1)) + 1
        confidence = 1 - (1 - self.noise.confidence) / comparisons
        return self._threshold.raised_to(self._spread.limit(min(MEASURED, self.noise.repeats), confidence))

    def _with_merges(self, search: ProbedLine, rows: tuple[StepRow, ...], looks: int) -> tuple[StepRow, ...]:
        """Return ``rows`` with what each merge among them brought in ahead of what is left of it."""
        if self.opener is None:
            return rows
        for row in rows:
            position = search.position(row.commit) if row.commits == 1 else None
            if position is None or not search.commit(position).is_merge or search.is_end_of_branch(position):
                continue
            brought, beside, looks = self._brought(self.opener, search, position, looks)
            rows = self._significant(opened(rows, search.commit(position).hash, brought, beside))
        return rows

    def _brought(
        self, opener: MergeOpener, search: ProbedLine, position: int, looks: int
    ) -> tuple[list[StepRow], Bytes, int]:
        """Return the steps of all lines that the merge at ``position`` brought in, and what lies below the threshold.

        The third value is what is left of ``looks``.
        """
        merge, brought, beside = search.commit(position), list[StepRow](), Bytes()
        for parent in range(len(merge.parents)):
            try:
                branch = opener.branch(search, position, parent)
            except GitError as error:
                search.prober.note(f"what {merge.short} brought in was not looked into: {error}")
                continue
            if branch is None or branch.is_unchanged or not self._measure_ends(branch):
                continue
            rows, looks = self._rows(branch, looks)
            inside = self._with_merges(branch, rows, looks)
            brought += inside
            beside += branch.brought - sum((row.delta for row in inside if row.commit != merge.hash), start=Bytes())
        return brought, beside, looks

    def _measure_ends(self, branch: BranchSearch) -> bool:
        """Measure where ``branch`` begins and its tip, if time allows, and return whether its steps can be known."""
        branch.recall(self._known)
        try:
            branch.measure_ends()
        except OutOfTimeError:
            self._is_complete = False
            return False
        if branch.measured(0) is None:
            why = branch.records[0].reason
            branch.prober.note(
                f"what {branch.merge.short} brought in was not looked into: it begins untestable ({why})"
            )
            return False
        return True

    def _significant(self, rows: Sequence[StepRow]) -> tuple[StepRow, ...]:
        """Return the rows above the threshold, and above what single probes differ by."""
        spread = self._spread.limit(1, self.noise.confidence) if self._spread and self.noise else Threshold.of(0)
        least = self._threshold.raised_to(spread)
        return tuple(row for row in rows if least.is_exceeded_by(row.delta))


def _ahead(search: ProbedLine, state: StepSearch, *, anew: bool) -> Iterator[Experiment | Untestable]:
    """Yield what a search for steps is going to measure: in each range that differs, one half at least goes on.

    Where none does, the looks that follow as long as they find nothing.
    """
    measured_by = search.again if anew else search.experiment
    if not state.splitting:
        yield from map(measured_by, state.looks_ahead())
    wanted = ahead(
        state.splitting,
        lambda range_: range_.wanted,
        Search.told,
        lambda position: None if position not in search.records else search.records[position].answer,
    )
    yield from map(measured_by, wanted)


def below(threshold: Threshold, spread: ProbeSpread | None = None, *, is_reserved_known: bool = True) -> str:
    """Return what the row of small differences is called, where ``spread`` is that of a probe."""

    def both(live: float, overhead: float) -> str:
        beside = f" and {format_size(round(overhead))} overhead" if is_reserved_known else ""
        return f"{format_size(round(live))} requested{beside}"

    smaller = f"smaller differences, of at most {both(threshold.requested_bytes, threshold.overhead_bytes)} each"
    if spread is None:
        return smaller
    spread_text = both(spread.requested_bytes, spread.overhead_bytes)
    unclear = f"differences that do not stand clear of the spread of a probe, {spread_text}"
    return unclear if threshold == Threshold.of(0) else f"{unclear}; {smaller}"


def _stretch(search: ProbedLine, step: ByteStep) -> UnseenStretch:
    since, until = search.commit(step.after), search.commit(step.at)
    return UnseenStretch(since=since.hash, until=until.hash, commits=step.at - step.after)
