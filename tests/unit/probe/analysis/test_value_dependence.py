"""A run that read what the card does not know is believed only where another rule of values changes no request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.analysis.value_dependence import Difference, first_difference
from oomscope.probe.job import ProbeJob, ProgramTarget, Progress
from oomscope.probe.machine.forked_run import InlineRun
from oomscope.probe.measure import measure
from oomscope.probe.measurement import (
    AllocatorStats,
    DeviceBudget,
    Ending,
    FailedAllocation,
    Measurement,
    Unanswered,
)
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.result import Failure, ProbeResult
from oomscope.snapshot.trace import Action, Frame, Snapshot, Stack, Trace
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder

REPO = Path("/checkout")
LINE = Frame(str(REPO / "train.py"), 12, "step")
READ = Unanswered(reads=3, lines=(LINE,))
STATS = AllocatorStats(
    **dict.fromkeys(
        (
            *(f"{name}_bytes_peak" for name in ("allocated", "active", "reserved", "requested")),
            *(f"{name}_bytes_current" for name in ("requested", "allocated")),
        ),
        9 * MiB,
    )
)
JOB = ProbeJob(target=ProgramTarget(repo=str(REPO), command="python train.py"), backend="virtual")


def measured(*sizes: int, **fields: Any) -> Measurement:
    builder = TraceBuilder()
    for number, size in enumerate(sizes):
        stack = (Frame("/lib/torch/f.py", 1, "f"), replace_line(number))
        builder.event(Action.ALLOC, number * 16 * MiB, size, stack=stack)
    budget = DeviceBudget(gpu="l4", limit_bytes=20 * MiB, non_torch_bytes=0, other_process_bytes=0)
    known = {"snapshot": Snapshot(segments=(), traces=(builder.build(),)), "device": budget, "stats": STATS}
    return Measurement(**known | {"unanswered": READ} | fields)


def replace_line(number: int) -> Frame:
    return LINE._replace(line=20 + number)


class Runs:
    """A target whose runs end as ``endings`` says, by the rule of values."""

    def __init__(self, **endings: Ending) -> None:
        self._endings = endings
        self.asked: list[SessionSettings] = []
        self.kept: list[ProbeResult] = []
        self.stages: list[str] = []

    @property
    def rules(self) -> list[str]:
        return [each.values for each in self.asked]

    def __call__(self, settings: SessionSettings, backend: str, progress: Any) -> InlineRun[Ending]:
        self.asked.append(settings)
        progress(Progress(stage="step"))
        return InlineRun(lambda: self._endings[settings.values])

    def probed(self, job: ProbeJob = JOB) -> ProbeResult:
        return measure(job, progress=lambda step: self.stages.append(step.stage), keep=self.kept.append, begin=self)


def of_threads(*sizes: int, at: int = 7) -> Trace:
    """Return requests of a thread that the program started, after one of its own."""
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, MiB, stack=(LINE,))
    started = Frame("/usr/lib/python3.12/threading.py", 1032, "_bootstrap")
    for number, size in enumerate(sizes, 1):
        builder.event(Action.ALLOC, number * 16 * MiB, size, stack=(Frame("load.py", at, "load"), started))
    return builder.build()


def test_started_threads_may_take_turns_in_any_order() -> None:
    assert first_difference(of_threads(MiB, 3 * MiB, 2 * MiB), of_threads(3 * MiB, 2 * MiB, MiB)) is None
    found = first_difference(of_threads(MiB, 3 * MiB, 2 * MiB), of_threads(4 * MiB, MiB, 2 * MiB))
    assert found is not None
    assert (found.requested_bytes, found.other_bytes) == (3 * MiB, 4 * MiB)
    assert first_difference(of_threads(MiB, MiB), of_threads(MiB)) == found._replace(
        requested_bytes=MiB, other_bytes=None
    )
    moved = first_difference(of_threads(MiB), of_threads(MiB, at=8))
    assert moved is not None, "the sizes of each line are compared"
    assert (moved.requested_bytes, moved.other_bytes, moved.stack[0].line) == (MiB, None, 7)


def test_a_run_that_read_nothing_is_not_repeated() -> None:
    runs = Runs(zeros=Ending(measurement=measured(MiB, unanswered=Unanswered())))
    assert runs.probed().outcome == "fits"
    assert len(runs.asked) == 1


def test_the_answer_stands_where_the_requests_are_the_same() -> None:
    runs = Runs(zeros=Ending(measurement=measured(MiB, 2)), larger=Ending(measurement=measured(MiB, 2)))
    result = runs.probed()
    assert result.outcome == "fits"
    assert result.notes == (
        (
            "values that a virtual card does not compute were read 3 times (at train.py:12); "
            "with large numbers in place of zeros the program requested the same bytes"
        ),
    )
    assert runs.rules == ["zeros", "larger"]
    assert runs.stages.count("values") == 1


def test_a_size_is_no_answer_and_has_its_line() -> None:
    runs = Runs(
        zeros=Ending(measurement=measured(MiB, 0, 7)),
        larger=Ending(measurement=measured(MiB, 4, 7)),
        largest=Ending(measurement=measured(MiB, 9, 7)),
    )
    result = runs.probed()
    assert (result.outcome, result.peak, result.failure.kind) == ("error", None, "untestable")
    assert runs.rules == ["zeros", "larger", "zeros", "largest"]
    said = ", and a second run with other values asks for 4 B instead of 0 B at train.py:21 step; with zeros in their"
    assert f"{said} place it requests 9.00 MiB at its peak; use --backend cuda" in result.failure.message


def test_a_peak_that_moves_is_no_answer() -> None:
    """The same requests, and another moment at which memory is given back; or another process that takes more."""

    def peak(size: int) -> dict[str, Any]:
        return {"stats": replace(STATS, requested_bytes_peak=size)}

    for moved, other in ((peak(8 * MiB), peak(7 * MiB)), ({"other_peaks": (MiB,)}, {"other_peaks": (2,)})):
        runs = Runs(
            zeros=Ending(measurement=measured(MiB)),
            larger=Ending(measurement=measured(MiB, **moved)),
            largest=Ending(measurement=measured(MiB, **other)),
        )
        result = runs.probed()
        assert (result.outcome, result.failure.kind) == ("error", "untestable")
    assert "another process of the program allocates other bytes" in result.failure.message


def test_a_reserved_peak_may_move_where_threads_take_turns() -> None:
    moved = replace(STATS, reserved_bytes_peak=11 * MiB)

    def of(*sizes: int, **stats: Any) -> Ending:
        return Ending(measurement=measured(snapshot=Snapshot(segments=(), traces=(of_threads(*sizes),)), **stats))

    result = Runs(zeros=of(MiB, 2 * MiB), larger=of(2 * MiB, MiB, stats=moved)).probed()
    assert result.outcome == "fits"
    assert "but the reserved peak is 11.00 MiB instead of 9.00 MiB: threads of the program allocate" in result.notes[0]
    other = replace(STATS, reserved_bytes_peak=12 * MiB)
    in_order = Runs(zeros=of(MiB), larger=of(MiB, stats=moved), largest=of(MiB, stats=other))
    assert in_order.probed().outcome == "error"


def needing(size: int, **fields: Any) -> Ending:
    stats = replace(STATS, requested_bytes_peak=size)
    return Ending(measurement=measured(size, stats=stats), **fields)


def of_lines(*sizes: int) -> Ending:
    return Ending(measurement=measured(*(size * MiB for size in sizes)))


READ_NOTE = "values that a virtual card does not compute were read 3 times (at train.py:12)"


@pytest.mark.parametrize(("zeros", "larger", "largest"), [(4, 8, 8), (8, 4, 4), (4, 8, 4)])
def test_a_decision_is_answered_by_the_way_that_takes_more(zeros: int, larger: int, largest: int) -> None:
    runs = Runs(zeros=needing(zeros * MiB), larger=needing(larger * MiB), largest=needing(largest * MiB))
    result = runs.probed()
    assert (result.outcome, result.peak.requested_bytes) == ("fits", 8 * MiB)
    ways = "requests 8.00 MiB at its peak, or requests 4.00 MiB at its peak; the worse is reported"
    other = f"a second run with other values asks for {larger}.00 MiB instead of {zeros}.00 MiB at train.py:20 step"
    assert result.notes == (
        f"{READ_NOTE}, and decide what the program does: with the values that were tried, it {ways} ({other})",
    )
    assert runs.rules == ["zeros", "larger", "zeros", "largest"]


def test_branches_with_the_same_peak_are_reported_as_one() -> None:
    runs = Runs(zeros=of_lines(1, 2), larger=of_lines(2, 1), largest=of_lines(2, 1))
    assert (
        "with the values that were tried, it requests 9.00 MiB at its peak either way (a second"
        in runs.probed().notes[0]
    )


def test_running_out_of_memory_is_the_worse_way_and_is_explored_under_its_rule() -> None:
    refused = FailedAllocation(requested_bytes=64 * MiB, message="no more")
    short = needing(4 * MiB, out_of_memory=refused)
    runs = Runs(zeros=needing(8 * MiB), larger=short, largest=short)
    result = runs.probed()
    assert result.outcome == "oom"
    assert (
        "it runs out of memory, or requests 8.00 MiB at its peak; the worse is reported (a second run"
        in result.notes[0]
    )
    assert [(each.values, each.unlimited) for each in runs.asked][4:] == [("larger", True)]


@pytest.mark.parametrize(
    ("saved", "more"), [("", ""), ("last.pt", ", or see that it does not resume from last.pt, which it saved")]
)
def test_a_program_that_differs_in_each_run_is_reported(saved: str, more: str) -> None:
    runs = iter([2, 5, 7])

    class Changing(Runs):
        def __call__(self, settings: SessionSettings, backend: str, progress: Any) -> InlineRun[Ending]:
            ending = needing(next(runs) * MiB)
            return InlineRun(lambda: replace(ending, measurement=replace(ending.measurement, saved=saved)))

    result = Changing().probed()
    assert (result.outcome, result.failure.kind) == ("error", "untestable")
    again = "a second run of it asks for 7.00 MiB instead of 2.00 MiB at train.py:20 step"
    assert result.failure.message == (
        f"the program allocates differently in each run: {again}; "
        f"seed the random numbers that set lengths or order{more}"
    )


@pytest.mark.parametrize("again", [None, Ending(measurement=measured(9, truncated=True))])
def test_a_second_run_that_shows_nothing_does_not_blame_the_program(again: Ending | None) -> None:
    endings = iter([of_lines(1), of_lines(2), again, of_lines(3)])

    class Repeated(Runs):
        def __call__(self, settings: SessionSettings, backend: str, progress: Any) -> InlineRun[Ending]:
            return InlineRun(lambda: next(endings))

    result = Repeated().probed()
    assert "a second run with other values asks for 2.00 MiB instead of 1.00 MiB" in result.failure.message


def test_a_run_that_dropped_events_is_not_blamed_on_the_program() -> None:
    cut = Ending(measurement=measured(MiB, truncated=True))
    runs = Runs(zeros=cut, larger=of_lines(2))
    assert "events were dropped, so whether sizes depend on them" in runs.probed().failure.message
    assert runs.rules == ["zeros", "larger"]


FAILED = Ending(measurement=None, failure=Failure(kind="step", message="AssertionError"), unanswered=READ)


def test_where_zeros_fail_a_check_of_the_program_two_other_rules_answer() -> None:
    runs = Runs(zeros=FAILED, larger=needing(4 * MiB), largest=needing(4 * MiB))
    result = runs.probed()
    assert (result.outcome, result.peak.requested_bytes) == ("fits", 4 * MiB)
    fails = "where they are 0 the program fails (AssertionError)"
    assert result.notes == (f"{READ_NOTE}; {fails}; two runs with other values requested the same bytes",)
    assert [each.outcome for each in runs.kept] == ["error", "fits"]


@pytest.mark.parametrize(
    ("endings", "rules"),
    [
        ({"larger": FAILED}, ["zeros", "larger"]),
        ({"larger": needing(4 * MiB), "largest": needing(5 * MiB)}, ["zeros", "larger", "largest"]),
        ({"zeros": replace(FAILED, unanswered=Unanswered())}, ["zeros"]),
    ],
)
def test_a_program_that_fails_for_other_reasons_keeps_its_own_failure(
    endings: dict[str, Ending], rules: list[str]
) -> None:
    runs = Runs(**({"zeros": FAILED} | endings))
    result = runs.probed()
    assert (result.outcome, result.failure.kind) == ("error", "step")
    hint = "--compute-values has the host compute them"
    before = f"it had read values that a virtual card does not compute, at train.py:12; {hint}"
    assert result.failure.message == ("AssertionError" if len(rules) == 1 else f"AssertionError ({before})")
    assert runs.rules == rules


def test_a_program_that_fails_though_the_host_computes_names_what_is_not_computed() -> None:
    seen = replace(READ, not_computed=("aten.one.default", "aten.two.default"))
    job = replace(JOB, compute_values=True)
    message = Runs(zeros=replace(FAILED, unanswered=seen), larger=FAILED).probed(job).failure.message
    assert message.endswith("at train.py:12: the host cannot compute aten.one.default, aten.two.default)")


def test_where_large_numbers_are_out_of_range_ones_answer() -> None:
    runs = Runs(zeros=needing(4 * MiB), larger=FAILED, ones=needing(4 * MiB))
    result = runs.probed()
    assert result.outcome == "fits"
    assert result.notes == (f"{READ_NOTE}; with ones in place of zeros the program requested the same bytes",)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            Ending(measurement=None, failure=Failure(kind="step", message="IndexError: 1")),
            "a second run with other values fails: IndexError: 1",
        ),
        (
            Ending(measurement=measured(MiB, truncated=True)),
            "events were dropped, so whether sizes depend on them is unknown",
        ),
    ],
)
def test_what_cannot_be_compared_is_no_answer(other: Ending, said: str) -> None:
    runs = Runs(zeros=Ending(measurement=measured(MiB)), larger=other, ones=needing(4 * MiB))
    result = runs.probed()
    assert (result.outcome, result.failure.kind) == ("error", "untestable")
    assert said in result.failure.message


def test_an_oom_is_checked_too_and_the_demand_comes_after() -> None:
    refused = FailedAllocation(requested_bytes=64 * MiB, message="no more")
    short = Ending(measurement=measured(MiB), out_of_memory=refused)
    runs = Runs(zeros=short, larger=Ending(measurement=measured(MiB), out_of_memory=refused))
    assert runs.probed().outcome == "oom"
    assert [(each.values, each.unlimited) for each in runs.asked][:3] == [
        ("zeros", False),
        ("larger", False),
        ("zeros", True),
    ]


sizes = st.lists(st.integers(1, 4), max_size=12)


def stack_of(number: int) -> Stack:
    return (Frame("train.py", number, "step"),)


def trace_of(requests: list[int], *, noise: int = 0) -> Trace:
    """Return a trace that asks for ``requests``, request k in line k, with other events between them."""
    builder = TraceBuilder()
    for number, size in enumerate(requests):
        for _ in range(noise):
            builder.event(Action.SEGMENT_ALLOC, 1 << 30, 1 << 21)
        builder.event(Action.ALLOC, 0x1000 * number, size, stack=stack_of(number))
    return builder.build()


@given(sizes, sizes)
def test_the_first_difference_is_that_of_the_sequences(ours: list[int], theirs: list[int]) -> None:
    found = first_difference(trace_of(ours), trace_of(theirs, noise=2))
    place = next((k for k in range(max(len(ours), len(theirs))) if ours[k : k + 1] != theirs[k : k + 1]), None)
    if place is None:
        assert ours == theirs
        assert found is None
    else:
        expected = Difference(
            requested_bytes=next(iter(ours[place : place + 1]), None),
            other_bytes=next(iter(theirs[place : place + 1]), None),
            stack=stack_of(place),
        )
        assert found == expected
