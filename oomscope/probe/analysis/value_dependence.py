"""Checks whether unknown values, which a program read from a virtual card, affect what it allocates.

A read of bytes that nobody copied to the card is answered by a rule: zeros, in the first run. Such a run is repeated
under another rule, larger numbers. Where the two ask the allocator for the same sizes in the same order, the values did
not matter.

Where they do not, a further run under the first rule shows whether the program does the same in each run at all. If it
does, one under a third rule, the largest numbers, tells a *decision* from a *size*. A program that branches by an
unknown value (``if norm > 1``) has two ways to go, so that a third number leads to one of these again; one that sizes a
tensor by it asks for a third size. A decision is answered by the way that takes more memory, and a note names both. A
size has no answer. Of several decisions two combinations are tried; a size with an upper bound (of a slice) may look
like a decision.

In the same way a program that fails under one rule, for a check of its own, is answered by two others that agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from oomscope.probe.analysis.sites import site_rule
from oomscope.probe.job import ProbeJob
from oomscope.probe.measurement import Ending, Measurement, Unanswered
from oomscope.probe.result import Failure
from oomscope.snapshot.trace import Action, Frame, Stack, Trace
from oomscope.units import format_apart, format_size
from oomscope.virtual.settings import ValueRule

_REMEDY: Final = "use --backend cuda, or --compute-values, which has the host compute all of them and is slow"
_REMEDY_OF_COMPUTED: Final = "use --backend cuda"
_MOST_LINES: Final = 3
_OTHER: Final = "a second run with other values"
_AGAIN: Final = "a second run of it"
_CHANGES: Final = "the program allocates differently in each run"
_SEED: Final = "seed the random numbers that set lengths or order"
_SAME_ONES: Final = "with ones in place of zeros the program requested the same bytes"
_SAME: Final = "with large numbers in place of zeros the program requested the same bytes"


def unchecked_failure(job: ProbeJob, measurement: Measurement) -> Failure:
    """Return the failure of a run that was not repeated: it stays unknown whether the values mattered."""
    return _untestable(job, f"{_read(job, measurement.unanswered)}; whether sizes depend on them is unknown")


class CheckedRun(NamedTuple):
    """A run whose measurement may be reported."""

    ending: Ending
    note: str
    """What the reported run read, and what the repeated runs showed."""
    values: ValueRule = "zeros"
    """The rule of the reported run."""
    check: ValueRule | None = "larger"
    """The rule under which further runs must ask for the same; None where no other rule repeats the reported run."""


Repeat = Callable[[ValueRule], Ending | None]
"""Runs the target whole once more under a rule of values; None where its process was lost."""


def checked_run(job: ProbeJob, first: Ending, repeat: Repeat) -> CheckedRun | Failure:
    """Return the run to report, or why none can be.

    Args:
        job: what was measured.
        first: how the run under zeros ended, which read what the card does not know.
        repeat: makes further runs.
    """
    measurement = first.measurement
    if measurement is None:
        return _where_zeros_fail(job, first, repeat)
    read = _read(job, measurement.unanswered)
    larger = repeat("larger")
    difference = _difference(job, measurement, larger)
    if difference is None:
        return CheckedRun(first, f"{agreement_note(job, measurement)}{_turns(measurement, larger)}")
    failure = _untestable(job, f"{read}, and {difference}; with zeros in their place it {_end(first)}")
    if measurement.truncated or (
        larger is not None and larger.measurement is not None and larger.measurement.truncated
    ):
        return failure
    if (changing := _changing(job, measurement, repeat("zeros"))) is not None:
        return changing
    if larger is None or larger.measurement is None:
        ones = repeat("ones")
        if _difference(job, measurement, ones) is None:
            return CheckedRun(first, f"{read}; {_SAME_ONES}{_turns(measurement, ones)}", check="ones")
        return failure
    largest = repeat("largest")
    is_like_zeros = _difference(job, measurement, largest) is None
    if not (is_like_zeros or _difference(job, larger.measurement, largest) is None):
        return failure
    other, worse = sorted((larger, first), key=_weight)  # the first of equal runs is reported
    same = _end(worse) == _end(other)
    ways = f"{_end(worse)} either way" if same else f"{_end(worse)}, or {_end(other)}; the worse is reported"
    note = f"{read}, and decide what the program does: with the values that were tried, it {ways} ({difference})"
    like_largest = first if is_like_zeros else larger
    return CheckedRun(
        worse, note, "zeros" if worse is first else "larger", "largest" if worse is like_largest else None
    )


def _changing(job: ProbeJob, measurement: Measurement, again: Ending | None) -> Failure | None:
    """Return the failure of a program that differs in each run, if a whole second one under the same rule shows it."""
    if again is None or again.measurement is None or again.measurement.truncated:
        return None
    difference = _difference(job, measurement, again, _AGAIN)
    resumes = f", or see that it does not resume from {measurement.saved}, which it saved" if measurement.saved else ""
    return Failure(kind="untestable", message=f"{_CHANGES}: {difference}; {_SEED}{resumes}") if difference else None


def _where_zeros_fail(job: ProbeJob, first: Ending, repeat: Repeat) -> CheckedRun | Failure:
    """Return a run under larger numbers, where one under the largest asks for the same; else how the first failed."""
    assert first.failure is not None  # noqa: S101 - there is no measurement
    larger = repeat("larger")
    measurement = larger.measurement if larger is not None else None
    if larger is None or measurement is None or _difference(job, measurement, again := repeat("largest")) is not None:
        places = _places(first.unanswered.lines, site_rule(job).name_of)
        hint = _not_computed(first.unanswered) if job.compute_values else "; --compute-values has the host compute them"
        before = f"it had read values that a virtual card does not compute{f', {places}' if places else ''}{hint}"
        return replace(first.failure, message=f"{first.failure.message} ({before})")
    read = _read(job, measurement.unanswered)
    fails = f"where they are 0 the program fails ({first.failure.message})"
    note = f"{read}; {fails}; two runs with other values requested the same bytes{_turns(measurement, again)}"
    return CheckedRun(larger, note, "larger", "largest")


def agreement_note(job: ProbeJob, measurement: Measurement) -> str:
    """Return the note on a run that read values, where another run asked for the same."""
    return f"{_read(job, measurement.unanswered)}; {_SAME}"


def mismatch_failure(job: ProbeJob, measurement: Measurement, check: Ending | None) -> Failure | None:
    """Return the failure of a further run that allocates otherwise than ``check``, the same under another rule."""
    difference = _difference(job, measurement, check)
    return _untestable(job, f"{_read(job, measurement.unanswered)}, and {difference}") if difference else None


def _weight(ending: Ending) -> tuple[int, ...]:
    """Return how much memory a run takes, to compare two by."""
    assert ending.measurement is not None  # noqa: S101 - it has an answer
    stats = ending.measurement.stats
    return (ending.out_of_memory is not None, stats.requested_bytes_peak, stats.reserved_bytes_peak)


def _end(ending: Ending) -> str:
    """Return how a run ended, as a clause."""
    assert ending.measurement is not None  # noqa: S101 - it has an answer
    if ending.out_of_memory is not None:
        return "runs out of memory"
    return f"requests {format_size(ending.measurement.stats.requested_bytes_peak)} at its peak"


def _difference(job: ProbeJob, measurement: Measurement, ending: Ending | None, run: str = _OTHER) -> str | None:
    """Return what another ``run`` did that is not what the measured one did; None where both asked for the same."""
    other = ending.measurement if ending is not None else None
    if other is None:
        why = ending.failure.message if ending is not None and ending.failure is not None else "its process was lost"
        return f"{run} fails: {why}"
    if measurement.truncated or other.truncated:
        return "events were dropped, so whether sizes depend on them is unknown"
    found = first_difference(measurement.trace, other.trace)
    if found is not None:
        site = site_rule(job).site_of(found.stack, found.module)
        place = f" at {site.file}:{site.line} {site.function}" if site else ""
        return f"{run} asks for {found}{place}"
    moved = _moved_peaks(measurement, other)
    if not moved or _turns(measurement, ending):
        return None
    return f"in {run} {next(iter(moved.values()))}"


def _turns(measurement: Measurement, ending: Ending | None) -> str:
    """Return a clause on how much the reserved peak of another run differs, where only the order of threads does."""
    other = ending.measurement if ending is not None else None
    moved = _moved_peaks(measurement, other) if other is not None else {}
    if other is None or list(moved) != ["reserved"] or not _threads_take_other_turns(measurement.trace, other.trace):
        return ""
    return f", but {moved['reserved']}: threads of the program allocate in another order each time"


def _untestable(job: ProbeJob, message: str) -> Failure:
    remedy = _REMEDY_OF_COMPUTED if job.compute_values else _REMEDY
    return Failure(kind="untestable", message=f"{message}; {remedy}", of_values=True)


def _moved_peaks(measurement: Measurement, other: Measurement) -> dict[str, str]:
    """Return what differs between two runs that asked for the same: a clause each, by the peak's name.

    Values may decide when memory is given back, and what another process of the target asks for.
    """
    moved = {}
    for name in ("requested", "allocated", "reserved"):
        one, two = (getattr(each.stats, f"{name}_bytes_peak") for each in (measurement, other))
        if one != two:
            moved[name] = f"the {name} peak is {format_size(two)} instead of {format_size(one)}"
    if measurement.other_peaks != other.other_peaks:
        moved["others"] = "another process of the program allocates other bytes"
    return moved


def _read(job: ProbeJob, seen: Unanswered) -> str:
    """Return how often what was read, and where."""
    rule = site_rule(job)
    times = "once" if seen.reads == 1 else f"{seen.reads:,} times"
    places = _places(seen.lines, rule.name_of)
    at = f" ({places})" if places else ""
    return f"values that a virtual card does not compute were read {times}{at}{_not_computed(seen)}"


def _not_computed(seen: Unanswered) -> str:
    """Return which operations the host could not compute; empty without any."""
    more = " …" if len(seen.not_computed) > _MOST_LINES else ""
    return f": the host cannot compute {', '.join(seen.not_computed[:_MOST_LINES])}{more}" if seen.not_computed else ""


def _places(lines: Sequence[Frame], name: Callable[[str], str]) -> str:
    """Return "at" and the first of the lines, their files as ``name`` calls them; empty without any."""
    places = list(dict.fromkeys(f"{name(line.filename)}:{line.line}" for line in lines))
    more = " and elsewhere" if len(places) > _MOST_LINES else ""
    return f"at {', '.join(places[:_MOST_LINES])}{more}" if places else ""


class Difference(NamedTuple):
    """The first request in which two runs differ; bytes. None stands for a run that made no further request."""

    requested_bytes: int | None
    """Size of the request in the run that is reported."""
    other_bytes: int | None
    """Size of the request in the run under the other rule."""
    stack: Stack
    """Stack of the request in the reported run, or in the other one if that alone made it."""
    module: str = ""

    def __str__(self) -> str:
        """Return what was asked for, without the line."""
        if self.requested_bytes is not None and self.other_bytes is not None:
            one, other = format_apart(self.requested_bytes, self.other_bytes)
        else:
            sizes = (self.requested_bytes, self.other_bytes)
            one, other = ("nothing more" if size is None else format_size(size) for size in sizes)
        return f"{other} instead of {one}"


def first_difference(reported: Trace, other: Trace) -> Difference | None:
    """Return the first request of two runs of one device that differs in size; None where all are the same.

    Requests that were refused count as well. Those of threads that the program started take turns in an order of their
    own in each run: of each of their stacks the sizes are compared, not the order. Both traces are whole: none of their
    events was dropped.
    """
    ours, theirs = _Requests(reported), _Requests(other)
    common = min(len(ours.ordered), len(theirs.ordered))
    differing = np.flatnonzero(reported.size[ours.ordered[:common]] != other.size[theirs.ordered[:common]])
    place = int(differing[0]) if len(differing) else common
    if place < max(len(ours.ordered), len(theirs.ordered)):
        trace, rows = (reported, ours.ordered) if place < len(ours.ordered) else (other, theirs.ordered)
        event = int(rows[place])
        return Difference(
            requested_bytes=int(reported.size[ours.ordered[place]]) if place < len(ours.ordered) else None,
            other_bytes=int(other.size[theirs.ordered[place]]) if place < len(theirs.ordered) else None,
            stack=trace.attributed_stack(event),
            module=trace.modules[trace.module_id[event]],
        )
    our_sizes, their_sizes = ours.sizes_of_threads(), theirs.sizes_of_threads()
    for stack in our_sizes | their_sizes:
        one, two = our_sizes.get(stack, Counter()), their_sizes.get(stack, Counter())
        if one != two:
            return Difference(min(one - two, default=None), min(two - one, default=None), stack)
    return None


class _Requests:
    """The requests of a run."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))
        is_threads = np.array([is_of_started_thread(stack) for stack in trace.stacks])[trace.stack_id[rows]]
        self.ordered = rows[~is_threads]
        """Events of the requests, without those of threads that the program started."""
        self.of_threads = rows[is_threads]
        self.turns = np.stack((trace.size[rows], is_threads))
        """Size of each request, and whether such a thread made it."""

    def sizes_of_threads(self) -> dict[Stack, Counter[int]]:
        sizes: dict[int, Counter[int]] = {}
        for row in self.of_threads:
            sizes.setdefault(int(self._trace.stack_id[row]), Counter())[int(self._trace.size[row])] += 1
        return {self._trace.stacks[stack]: counts for stack, counts in sizes.items()}


def _threads_take_other_turns(reported: Trace, other: Trace) -> bool:
    """Whether threads that the program started make the same requests in another order."""
    return not np.array_equal(_Requests(reported).turns, _Requests(other).turns)


def is_of_started_thread(stack: Stack) -> bool:
    """Return whether a thread that the program started made a request: such threads take turns in any order."""
    return bool(stack) and (stack[-1].name, Path(stack[-1].filename).name) == ("_bootstrap", "threading.py")
