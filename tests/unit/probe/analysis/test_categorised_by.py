"""A run that failed takes its categories from the one without a limit, as far as they were guesses."""

from __future__ import annotations

from dataclasses import replace

from oomscope.probe.analysis.analyse import categorised_by, step_peak_of
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
    found = categories(categorised_by(measured(*WHOLE), CUT_OFF, FAILED))
    assert found == [Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN, Category.COMMUNICATION]


def test_a_run_that_asked_for_something_else_or_lost_its_beginning_says_nothing() -> None:
    other = measured((MiB, Category.KEPT), (7 * MiB, Category.OPTIMIZER_STATE), *WHOLE[2:])
    for whole in (other, measured(*WHOLE[:2]), replace(measured(*WHOLE), truncated=True)):
        assert categorised_by(whole, CUT_OFF, FAILED) is CUT_OFF
    assert categorised_by(measured(*WHOLE), CUT_OFF, replace(FAILED, event=None)) is CUT_OFF


def test_a_program_without_an_optimizer_has_no_step_whatever_follows_its_backward() -> None:
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, MiB, moment=Moment("optimizer", 0, -1), category=Category.TEMPORARY)
    run = replace(measured(), snapshot=Snapshot(segments=(), traces=(builder.build(),)))
    job = ProbeJob(target=ProgramTarget(repo="/r", command="python train.py"))
    step = step_peak_of(job, replace(run, iterations=3))
    assert step is not None
    assert step.categories == {"temporary": MiB}
    assert step_peak_of(job, replace(run, iterations=0)) is None
