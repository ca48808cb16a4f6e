"""Iterations by each source, and what piles up over them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.activity import Phase, activity_of
from oomscope.snapshot.infer.inferred import iterations_of, with_moments
from oomscope.snapshot.judge.leaks import find_leak, suspects_of
from oomscope.snapshot.trace import UNKNOWN_MOMENT, Action, Annotation, Category, Moment
from oomscope.units import GiB, MiB
from tests.unit.snapshot.foreign import BACKWARD, STEP, Training
from tests.unit.snapshot.machine import Machine


def trained(steps: int, **step) -> Timeline:
    job = Training()
    job.build()
    for _ in range(steps):
        job.step(**step)
    return job.timeline()


def found(timeline: Timeline, annotations=()):
    return iterations_of(timeline, activity_of(timeline, annotations), annotations)


def test_optimizer_steps_end_iterations():
    iterations = found(trained(4))
    assert iterations.source == "optimizer steps"
    assert len(iterations) == 4


def test_a_step_that_the_recording_cuts_short_ends_nothing():
    job = Training()
    job.build()
    for _ in range(3):
        job.step()
    job.make(MiB, BACKWARD, Category.GRADIENT)
    job.make(MiB, STEP, Category.TEMPORARY)
    assert len(found(job.timeline())) == 3


def test_annotated_steps_count_before_stacks():
    timeline = trained(3)
    times = timeline.trace.time_us
    spans = [(times[10], times[20]), (times[30], times[39])]
    marks = [
        Annotation(name=f"ProfilerStep#{number}", stage=stage, device=0, time_us=int(time))
        for number, span in enumerate(spans)
        for stage, time in zip(("START", "END"), span, strict=True)
    ]
    iterations = found(timeline, marks)
    assert iterations.source == "annotations"
    assert iterations.ends.tolist() == [20, 39]


def test_only_what_is_alive_before_the_failure_leaks():
    machine = Machine(4 * GiB)
    kept = []
    for number in range(4):
        machine.moment = Moment("forward", number, 0)
        machine.alloc(2 * MiB, line=11)
        kept.append(machine.alloc(18 * MiB, line=12))
    machine.moment = Moment("forward", 4, 0)
    while_alive = len(machine.trace())
    for address in kept:
        machine.free(address)
    timeline = Timeline.of(machine.trace(), machine.segments())
    both, rest = (find_leak(timeline, until=until) for until in (while_alive, len(timeline.trace)))
    assert both is not None
    assert rest is not None
    assert (both.bytes_per_iteration, both.site.line) == (20 * MiB, 12)
    assert (rest.bytes_per_iteration, rest.site.line) == (2 * MiB, 11)


def test_a_leak_is_of_the_line_that_left_most_over_all_modules_that_run_it():
    machine = Machine(4 * GiB)
    for number in range(4):
        machine.moment = Moment("forward", number, 0)
        for _ in range(8):
            machine.alloc(4 * MiB, line=11)
        machine.alloc(20 * MiB, line=23)
    machine.moment = Moment("forward", 4, 0)
    machine.alloc(512, line=13)
    trace = machine.trace()
    layers = (np.cumsum(trace.action == Action.ALLOC) % 9 + 1).astype(np.int32)
    trace = replace(trace, modules=("", *(f"layers.{number}" for number in range(9))), module_id=layers)
    timeline = Timeline.of(trace, machine.segments())
    leak = find_leak(timeline)
    assert leak is not None
    assert (leak.bytes_per_iteration, leak.site.line, leak.further_lines) == (52 * MiB, 11, 1)
    ends = np.array([event for event in range(len(trace)) if trace.size[event] == 20 * MiB])
    assert [(suspect.site.line, suspect.bytes) for suspect in suspects_of(timeline, ends)] == [
        (11, 128 * MiB),
        (23, 80 * MiB),
    ]


def test_gradients_of_a_layer_whose_output_is_kept_are_not_counted():
    machine = Machine(4 * GiB)
    gradient = None
    for number in range(4):
        machine.moment = Moment("forward", number, 0)
        machine.alloc(8 * MiB, line=11)
        if gradient is not None:
            machine.free(gradient)
        machine.moment = Moment("backward", number, 0)
        gradient = machine.alloc(32 * MiB, line=12)
    machine.moment = Moment("forward", 4, 0)
    machine.free(machine.alloc(512, line=13))
    trace = machine.trace()
    forward = int(trace.stack_id[trace.size == 8 * MiB][0])
    trace = replace(trace, forward_stack_id=np.where(trace.size > MiB, forward, 0).astype(np.int32))
    leak = find_leak(Timeline.of(trace, machine.segments()))
    assert leak is not None
    assert (leak.bytes_per_iteration, leak.site.line) == (8 * MiB, 11)


def test_a_copy_made_once_between_growing_batches_is_no_leak():
    machine = Machine(4 * GiB)
    batch = None
    for number in range(4):
        machine.moment = Moment("forward", number, 0)
        if batch is not None:
            machine.free(batch)
        batch = machine.alloc((1 + number) * MiB, line=11, category=Category.INPUT)
        if number == 1:
            machine.alloc(180 * MiB, line=15)
    timeline = Timeline.of(machine.trace(), machine.segments())
    assert find_leak(timeline, until=len(timeline.trace)) is None


def replaced_by_larger(*, others_grow: bool) -> Timeline:
    """Return iterations in each of which a block is replaced by one of 4 MiB more."""
    machine = Machine(4 * GiB)
    kept = None
    for number in range(4):
        machine.moment = Moment("forward", number, 0)
        other = machine.alloc((10 + 4 * number * others_grow) * MiB, line=9)
        larger = machine.alloc((1 + number) * 4 * MiB, line=11)
        if kept is not None:
            machine.free(kept)
        kept = larger
        machine.free(other)
    machine.moment = Moment("forward", 4, 0)
    machine.alloc(MiB, line=9)
    return Timeline.of(machine.trace(), machine.segments())


def test_a_block_that_is_replaced_by_a_larger_one_each_time_is_a_leak():
    leak = find_leak(replaced_by_larger(others_grow=False))
    assert leak is not None
    assert (leak.bytes_per_iteration, leak.site.line) == (4 * MiB, 11)
    assert find_leak(replaced_by_larger(others_grow=True)) is None


def test_a_leak_is_found_with_its_line():
    timeline = trained(5, leak=2 * MiB)
    iterations = found(timeline)
    [suspect] = suspects_of(timeline, iterations.ends)
    assert suspect.site is not None
    assert (suspect.site.file, suspect.site.line) == ("/home/me/metrics.py", 33)
    assert suspect.bytes_per_iteration == 2 * MiB
    assert suspect.count == suspect.iterations
    activity = activity_of(timeline)
    told = Timeline(with_moments(timeline.trace, activity, iterations), timeline.segments)
    leak = find_leak(told)
    assert leak is not None
    assert leak.bytes_per_iteration == 2 * MiB


def test_phases_are_inferred_where_only_steps_were_recorded():
    """As ``oomscope record`` marks them; events of autograd's threads bear no mark."""
    timeline = trained(5, leak=2 * MiB)
    bare = found(timeline)
    activity = activity_of(timeline)
    numbers = np.searchsorted(bare.ends, np.arange(len(timeline.trace)))
    known = np.where(activity.at == Phase.BACKWARD, 0, numbers + 1)
    moments = (UNKNOWN_MOMENT, *(Moment("", number, -1) for number in range(int(numbers.max()) + 1)))
    marked = replace(timeline.trace, moment_id=known.astype(np.int32), moments=moments)
    recorded = Timeline(marked, timeline.segments)
    told = with_moments(marked, activity, found(recorded))
    assert [told.moments[moment].iteration for moment in told.moment_id] == numbers.tolist()
    assert {"forward", "backward", "optimizer"} <= {moment.phase for moment in told.moments}
    leak = find_leak(Timeline(told, timeline.segments))
    assert leak is not None
    assert leak.bytes_per_iteration == 2 * MiB


def leaking_in(numbers: range) -> Timeline:
    """Ten iterations, of which some leave 4 MiB more than they found."""
    job = Training()
    job.build()
    for number in range(10):
        job.step(leak=4 * MiB if number in numbers else 0)
    return job.timeline()


@pytest.mark.parametrize(("numbers", "mib"), [(range(10), 4), (range(0, 10, 2), 2), (range(3, 10, 3), 4 / 3)])
def test_the_rate_is_that_of_all_iterations(numbers, mib):
    timeline = leaking_in(numbers)
    [suspect] = suspects_of(timeline, found(timeline).ends)
    assert suspect.bytes_per_iteration == int(mib * MiB)
    assert (suspect.bytes, suspect.count, suspect.iterations) == (4 * MiB * len(numbers), len(numbers), len(numbers))


def test_moments_are_inferred_once_and_kept_where_the_recording_has_them():
    timeline = trained(3)
    activity, iterations = activity_of(timeline), found(timeline)
    told = with_moments(timeline.trace, activity, iterations)
    phases = {moment.phase for moment in told.moments}
    assert phases == {"", "forward", "backward", "optimizer"}
    assert {moment.iteration for moment in told.moments} == {-1, 0, 1, 2}
    assert with_moments(told, activity, iterations) is told
