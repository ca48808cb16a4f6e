"""Iterations by each source, and what piles up over them."""

from __future__ import annotations

import numpy as np
import pytest

from oomscope.snapshot.explain.suspects import suspects_of
from oomscope.snapshot.infer.activity import activity_of
from oomscope.snapshot.infer.inferred import with_moments
from oomscope.snapshot.infer.iterations import iterations_of
from oomscope.snapshot.judge.leaks import find_leak
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Annotation, Category, Moment
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


def test_recorded_numbers_count_first():
    machine = Machine(1 << 30)
    for number in range(3):
        machine.moment = Moment("forward", number, 0)
        machine.free(machine.alloc(MiB))
    timeline = Timeline.of(machine.trace(), machine.segments())
    iterations = found(timeline)
    assert iterations.source == "recorded"
    assert [timeline.trace.moments[timeline.trace.moment_id[end]].iteration for end in iterations.ends] == [0, 1]


def test_without_stacks_rhythm_tells():
    machine = Machine(1 << 30)
    machine.moment = Moment("", -1, -1)
    kept = []
    for _ in range(6):
        held = [machine.alloc(size * MiB, stack=(), category=Category.UNKNOWN) for size in range(1, 13)]
        kept.append(held.pop())
        for address in held:
            machine.free(address)
    iterations = found(Timeline.of(machine.trace(), machine.segments()))
    assert iterations.source == "rhythm"
    assert len(set(np.diff(iterations.ends).tolist()) - set(np.diff(iterations.ends)[1:].tolist())) <= 1
    assert len(iterations) >= 4


def unmarked(per_iteration: int, iterations: int) -> Timeline:
    """Iterations of four blocks that are given up and one that is kept, from lines that tell of no phase."""
    machine = Machine(4 * GiB)
    machine.moment = Moment("", -1, -1)
    machine.alloc(50 * MiB, line=5, category=Category.UNKNOWN)
    for _ in range(iterations):
        held = [machine.alloc((12 + 2 * k) * MiB, line=20 + k, category=Category.UNKNOWN) for k in range(4)]
        machine.alloc(per_iteration, line=99, category=Category.UNKNOWN)
        for address in held:
            machine.free(address)
    return Timeline.of(machine.trace(), machine.segments())


def test_rhythm_takes_the_shortest_repetition_and_cuts_where_least_is_alive():
    timeline = unmarked(20 * MiB, 12)
    iterations = found(timeline)
    assert iterations.source == "rhythm"
    assert np.diff(timeline.requested[iterations.ends]).tolist() == [20 * MiB] * (len(iterations) - 1)
    assert 11 <= len(iterations) <= 12


def test_what_rhythm_tells_gives_no_rate_and_no_iteration_number():
    timeline = unmarked(20 * MiB, 12)
    iterations = found(timeline)
    [suspect] = suspects_of(timeline, iterations)
    assert suspect.site is not None
    assert (suspect.site.line, suspect.bytes_per_iteration) == (99, None)
    told = with_moments(timeline.trace, activity_of(timeline), iterations)
    assert {moment.iteration for moment in told.moments} == {-1}


def test_a_set_up_that_repeats_itself_and_gives_nothing_up_is_no_iterations():
    machine = Machine(4 * GiB)
    machine.moment = Moment("", -1, -1)
    for _ in range(8):
        for k in range(6):
            machine.alloc((1 + k) * MiB, line=20 + k, category=Category.UNKNOWN)
    assert len(found(Timeline.of(machine.trace(), machine.segments()))) == 0


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
    assert (both.bytes_per_iteration, both.stack[0].line) == (20 * MiB, 12)
    assert (rest.bytes_per_iteration, rest.stack[0].line) == (2 * MiB, 11)


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


def test_a_leak_is_found_with_its_line():
    timeline = trained(5, leak=2 * MiB)
    iterations = found(timeline)
    [suspect] = suspects_of(timeline, iterations)
    assert suspect.site is not None
    assert (suspect.site.file, suspect.site.line) == ("/home/me/metrics.py", 33)
    assert suspect.bytes_per_iteration == 2 * MiB
    assert suspect.count == suspect.iterations
    activity = activity_of(timeline)
    told = Timeline(with_moments(timeline.trace, activity, iterations), timeline.segments)
    leak = find_leak(told)
    assert leak is not None
    assert leak.bytes_per_iteration == 2 * MiB


def test_gradients_made_anew_are_no_suspects():
    timeline = trained(5)
    assert suspects_of(timeline, found(timeline)) == ()


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
    [suspect] = suspects_of(timeline, found(timeline))
    assert suspect.bytes_per_iteration == int(mib * MiB)
    assert (suspect.bytes, suspect.count, suspect.iterations) == (4 * MiB * len(numbers), len(numbers), len(numbers))


def test_what_has_come_to_its_end_does_not_pile_up():
    timeline = leaking_in(range(3))
    assert suspects_of(timeline, found(timeline)) == ()


@pytest.mark.parametrize("steps", [1, 2])
def test_too_few_iterations_show_no_trend(steps):
    timeline = trained(steps, leak=2 * MiB)
    assert suspects_of(timeline, found(timeline)) == ()


def test_moments_are_told_once_and_kept_where_the_recording_has_them():
    timeline = trained(3)
    activity, iterations = activity_of(timeline), found(timeline)
    told = with_moments(timeline.trace, activity, iterations)
    phases = {moment.phase for moment in told.moments}
    assert phases == {"", "forward", "backward", "optimizer"}
    assert {moment.iteration for moment in told.moments} == {-1, 0, 1, 2}
    assert with_moments(told, activity, iterations) is told
