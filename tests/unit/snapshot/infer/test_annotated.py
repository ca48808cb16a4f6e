"""Iterations and phases by the annotations that torch writes round the steps of optimizers."""

from __future__ import annotations

import pytest

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.activity import Phase, activity_of
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.infer.inferred import Inferred, iterations_of
from oomscope.snapshot.judge.leaks import find_leak
from oomscope.snapshot.trace import Annotation, Category, Frame, Snapshot, Stack
from oomscope.units import KiB, MiB
from tests.unit.snapshot.foreign import BACKWARD, FORWARD, LEAK, MAIN, MOVED, TORCH, USER, Training

PLAIN: Stack = (Frame(USER, 70, "evaluate"), MAIN)
"""No frame of it tells what the program does."""


def called_from(line: int, *, makes_states: bool = False) -> Stack:
    """Return the stack of what a step allocates that a line of the program calls."""
    states = (Frame(f"{TORCH}/optim/adamw.py", 150, "_init_group"),) if makes_states else ()
    inside = (
        Frame(f"{TORCH}/optim/adamw.py", 220, "step"),
        Frame(f"{TORCH}/optim/optimizer.py", 493, "wrapper"),
    )
    return (*states, *inside, Frame(USER, line, "train_step"), MAIN)


class Annotated(Training):
    """A job with several models, each with an optimizer, whose steps torch annotates."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, int, int]] = []
        self.kept: set[object] = set()
        self.make(8 * MiB, MOVED, Category.PARAMETER)

    def run(self, *, leak: int = 0) -> int:
        """Run a model forward and backward, and return its gradient."""
        saved = self.make(40 * MiB, FORWARD, Category.ACTIVATION)
        if leak:
            self.make(leak, LEAK, Category.KEPT)
        gradient = self.make(8 * MiB, BACKWARD, Category.GRADIENT)
        self.free(saved)
        return gradient

    def optimize(self, name: str = "AdamW", *, line: int = 53, owner: object = None, gradient: int = 0) -> None:
        """Step an optimizer, which makes its states in its first step, and give up a gradient afterwards."""
        first = len(self.builder)
        owner = owner or (name, line)
        if owner not in self.kept:
            self.make(4 * KiB, called_from(line, makes_states=True), Category.OPTIMIZER_STATE)
        self.kept.add(owner)
        self.free(self.make(KiB, called_from(line), Category.TEMPORARY))
        self.spans.append((f"Optimizer.step#{name}.step", first, len(self.builder) - 1))
        if gradient:
            self.free(gradient)

    def annotations(self, timeline: Timeline) -> tuple[Annotation, ...]:
        times = timeline.trace.time_us
        return tuple(
            Annotation(name=name, stage=stage, device=0, time_us=int(times[event]))
            for name, *span in self.spans
            for stage, event in zip(("START", "END"), span, strict=True)
        )

    def inferred(self) -> Inferred:
        timeline = self.timeline()
        snapshot = Snapshot(
            segments=timeline.segments, traces=(timeline.trace,), annotations=self.annotations(timeline)
        )
        return Inferred(snapshot, timeline.trace)


def test_what_follows_an_annotated_step_is_unknown_until_the_next_evidence():
    job = Annotated()
    job.optimize(gradient=job.run())
    job.make(MiB, PLAIN, Category.UNKNOWN)
    ended = job.spans[0][2]
    inferred = job.inferred()
    last = Phase(int(inferred.activity.at[-1]))
    assert inferred.activity.at[ended] == Phase.OPTIMIZER
    assert last == Phase.UNKNOWN
    assert inferred.timeline.trace.moment_of(len(inferred.recorded) - 1).phase == ""


def test_an_annotated_zero_grad_is_no_step():
    job = Annotated()
    gradient = job.run()
    first = len(job.builder)
    job.free(gradient)
    job.spans.append(("Optimizer.zero_grad#AdamW.zero_grad", first, len(job.builder) - 1))
    assert set(job.inferred().activity.at[first:].tolist()) == {Phase.ZERO_GRAD}


def test_what_lies_between_a_step_and_the_next_forward_is_still_taken_for_input():
    job = Annotated()
    for _ in range(3):
        gradient = job.run()
        job.optimize(gradient=gradient)
        job.free(job.make(3 * MiB, PLAIN, Category.INPUT))
    activity = job.inferred().activity
    unknown = activity.at == Phase.UNKNOWN
    assert (activity.after[unknown] == Phase.OPTIMIZER).any()
    assert activity.after[-1] == Phase.UNKNOWN


def test_blocks_of_a_job_of_which_only_steps_are_known_are_not_called_temporary():
    job = Annotated()
    for _ in range(2):
        saved = [job.make(20 * MiB, (), Category.ACTIVATION) for _ in range(3)]
        for address in saved[:3]:
            job.free(address)
        job.optimize()
    job.make(20 * MiB, (), Category.ACTIVATION)
    inferred = job.inferred()
    lasting = inferred.bare.lifetimes.size == 20 * MiB
    assert set(inferred.evidence.category[lasting].tolist()) == {Category.UNKNOWN}


@pytest.mark.parametrize("fails_in", ["forward", "backward", "evaluation"])
def test_a_leak_is_found_wherever_the_next_iteration_fails(fails_in):
    job = Annotated()
    for _ in range(5):
        job.optimize(gradient=job.run(leak=4 * MiB))
    job.free(job.make(MiB, PLAIN, Category.INPUT))
    if fails_in == "forward":
        job.make(40 * MiB, FORWARD, Category.ACTIVATION)
    elif fails_in == "backward":
        job.run(leak=4 * MiB)
    leak = find_leak(job.inferred().timeline)
    assert leak is not None
    assert (leak.bytes_per_iteration, leak.iterations, leak.site.line) == (4 * MiB, 5, LEAK[0].line)


def test_optimizers_that_step_one_after_the_other_are_of_one_iteration():
    job = Annotated()
    for _ in range(4):
        gradient = job.run(leak=4 * MiB)
        job.optimize("SGD", line=53)
        job.optimize("AdamW", line=54, gradient=gradient)
    job.run()
    iterations = job.inferred().iterations
    assert (len(iterations), iterations.source, iterations.confidence) == (4, "annotations", Confidence.HIGH)
    leak = find_leak(job.inferred().timeline)
    assert leak is not None
    assert (leak.bytes_per_iteration, leak.iterations) == (4 * MiB, 4)


@pytest.mark.parametrize(("names", "lines"), [(("SGD", "AdamW"), (53, 53)), (("AdamW", "AdamW"), (53, 63))])
def test_an_iteration_ends_where_the_optimizer_that_stepped_first_steps_again(names, lines):
    job = Annotated()
    for _ in range(4):
        for name, line in zip(names, lines, strict=True):
            job.optimize(name, line=line, gradient=job.run())
    job.optimize(names[0], line=lines[0], gradient=job.run())
    iterations = job.inferred().iterations
    assert len(iterations) == 4
    assert iterations.confidence == Confidence.HIGH


def test_two_optimizers_of_one_class_that_one_line_steps_leave_doubt():
    job = Annotated()
    for _ in range(4):
        for owner in ("generator", "critic"):
            job.optimize(owner=owner, gradient=job.run())
    iterations = job.inferred().iterations
    assert iterations.source == "annotations"
    assert iterations.confidence == Confidence.MEDIUM


def test_an_optimizer_that_takes_over_goes_on_with_the_count():
    job = Annotated()
    for line in (53, 53, 53, 63, 63, 63):
        job.optimize(line=line, gradient=job.run())
    assert len(job.inferred().iterations) == 6


def test_steps_whose_closures_run_the_model_are_iterations_of_their_own():
    job = Annotated()
    for _ in range(3):
        first = len(job.builder)
        gradient = job.run()
        job.optimize("LBFGS", gradient=gradient)
        job.spans[-1] = (*job.spans[-1][:1], first, job.spans[-1][2])
    timeline = job.timeline()
    marks = job.annotations(timeline)
    assert len(iterations_of(timeline, activity_of(timeline, marks), marks)) == 3
