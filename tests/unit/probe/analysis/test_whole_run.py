"""A failed run takes from the one without a limit what only that one knows: categories, phase, requested bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.probe.analysis.analyse import step_peak_of
from oomscope.probe.analysis.whole_run import told_by
from oomscope.probe.job import ProbeJob, ProgramTarget
from oomscope.probe.measurement import AllocatorStats, DeviceBudget, FailedAllocation, Measurement
from oomscope.snapshot.trace import Action, Category, Moment, Snapshot
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder

STATS = AllocatorStats(
    **dict.fromkeys(
        (
            *("allocated_bytes_peak", "active_bytes_peak", "reserved_bytes_peak", "requested_bytes_peak"),
            *("requested_bytes_current", "allocated_bytes_current"),
            *("num_ooms", "num_alloc_retries"),
        ),
        0,
    )
)


def measured(*blocks: tuple[int, Category], fails: bool = False) -> Measurement:
    builder = TraceBuilder()
    for number, (size, category) in enumerate(blocks):
        builder.event(Action.ALLOC, number * 16 * MiB, size, category=category)
    if fails:
        builder.event(Action.OOM, 0, 99 * MiB)
    budget = DeviceBudget(gpu="l4", limit_bytes=20 * MiB, non_torch_bytes=0, other_process_bytes=0)
    return Measurement(snapshot=Snapshot(segments=(), traces=(builder.build(),)), device=budget, stats=STATS)


def categories(measurement: Measurement) -> list[Category]:
    return [Category(each) for each in measurement.trace.category[measurement.trace.action == Action.ALLOC]]


FAILED = FailedAllocation(requested_bytes=99 * MiB, message="", moment=Moment("optimizer", 0, -1), event=4)
CUT_OFF = measured(
    (MiB, Category.PARAMETER),
    (2 * MiB, Category.TEMPORARY),
    (3 * MiB, Category.TEMPORARY),
    (4 * MiB, Category.ACTIVATION),
    fails=True,
)
WHOLE = (
    (MiB, Category.KEPT),
    (2 * MiB, Category.OPTIMIZER_STATE),
    (3 * MiB, Category.UNKNOWN),
    (4 * MiB, Category.COMMUNICATION),
    (5 * MiB, Category.GRADIENT),
)


def test_labels_stay_and_guesses_by_lifetime_are_replaced() -> None:
    found = categories(told_by(measured(*WHOLE), CUT_OFF, FAILED)[0])
    assert found == [Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN, Category.COMMUNICATION]


def test_a_run_that_asked_for_something_else_or_lost_its_beginning_says_nothing() -> None:
    other = measured((MiB, Category.KEPT), (7 * MiB, Category.OPTIMIZER_STATE), *WHOLE[2:])
    for whole in (other, measured(*WHOLE[:2]), replace(measured(*WHOLE), truncated=True)):
        assert told_by(whole, CUT_OFF, FAILED) == (CUT_OFF, FAILED)
    unplaced = replace(FAILED, event=None)
    assert told_by(measured(*WHOLE), CUT_OFF, unplaced) == (CUT_OFF, unplaced)


STEP = Moment("optimizer", 0, -1)


def run_of(*moments: Moment, fails: bool = False) -> Measurement:
    """Return a run that makes a request at each moment; the last one is refused if it ``fails``."""
    builder = TraceBuilder()
    for number, moment in enumerate(moments):
        action = Action.OOM if fails and number == len(moments) - 1 else Action.ALLOC
        builder.event(action, number * 16 * MiB, MiB, moment=moment)
    return replace(measured(), snapshot=Snapshot(segments=(), traces=(builder.build(),)))


@pytest.mark.parametrize("phase", [Moment("loss", 0, 1), Moment("other", 0, -1), STEP])
def test_what_follows_a_backward_pass_is_told_by_what_comes_next(phase: Moment) -> None:
    before = STEP, Moment("backward", 0, 0)  # the step of another optimizer stays one
    failed = replace(FAILED, moment=STEP, event=3)
    told, refused = told_by(run_of(*before, phase, phase), run_of(*before, STEP, STEP, fails=True), failed)
    assert refused.moment == phase
    assert [told.trace.moments[number] for number in told.trace.moment_id] == [*before, phase, phase]


def test_a_phase_that_was_known_or_that_another_iteration_has_stays() -> None:
    forward, failed = Moment("forward", 0, 0), replace(FAILED, event=1)
    for known, told in ((forward, Moment("loss", 0, 0)), (STEP, Moment("loss", 1, 1))):
        cut_off = run_of(forward, known, fails=True)
        assert told_by(run_of(forward, told), cut_off, replace(failed, moment=known))[1].moment == known


@pytest.mark.parametrize(("conf", "asked"), [("roundup_power2_divisions:2", 9 * MiB), ("", 12 * MiB)])
def test_the_requested_bytes_are_those_before_the_allocators_own_rounding(conf: str, asked: int) -> None:
    whole, cut_off = (
        measured((MiB, Category.KEPT), (9 * MiB, Category.KEPT)),
        measured((MiB, Category.KEPT), fails=True),
    )
    failed = replace(FAILED, requested_bytes=12 * MiB, event=1)
    assert told_by(whole, replace(cut_off, allocator_conf=conf), failed)[1].requested_bytes == asked


def test_a_program_without_an_optimizer_has_no_step_whatever_follows_its_backward() -> None:
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, MiB, moment=Moment("optimizer", 0, -1), category=Category.TEMPORARY)
    run = replace(measured(), snapshot=Snapshot(segments=(), traces=(builder.build(),)))
    job = ProbeJob(target=ProgramTarget(repo="/r", command="python train.py"))
    step = step_peak_of(job, replace(run, iterations=3))
    assert step is not None
    assert step.categories == {"temporary": MiB}
    assert step_peak_of(job, replace(run, iterations=0)) is None
