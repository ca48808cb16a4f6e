"""What stacks and spans tell where a model and an optimizer call each other."""

from __future__ import annotations

import pytest

from oomscope.snapshot.infer.activity import Mark, Phase, StackReader
from oomscope.snapshot.infer.spans import Span, spans_of
from oomscope.snapshot.trace import Annotation, Category, Frame, Stack
from oomscope.units import MiB
from tests.unit.snapshot.foreign import BACKWARD, FORWARD, MAIN, RECOMPUTED, TORCH, USER
from tests.unit.snapshot.infer.test_annotated import Annotated, called_from

LAYER = Frame(f"{TORCH}/nn/functional.py", 3494, "cross_entropy")
TORCH_STEP = called_from(53)
OWN_STEP = (Frame(USER, 30, "step"), TORCH_STEP[1], *TORCH_STEP[2:])
"""Of an optimizer whose class stands in the program."""
CHECKPOINT = f"{TORCH}/utils/checkpoint.py"
BLOCK = Frame(USER, 25, "block")
"""A function that is checkpointed, outside any module."""
CLOSURE = Frame(USER, 40, "closure")
IN_CLOSURE: Stack = (*FORWARD[:2], CLOSURE, *TORCH_STEP)


@pytest.mark.parametrize(
    ("stack", "doing", "recomputes"),
    [
        ((LAYER, *FORWARD), Phase.FORWARD, False),
        ((LAYER, MAIN), Phase.FORWARD, False),
        ((LAYER, *OWN_STEP), Phase.OPTIMIZER, False),
        ((LAYER, CLOSURE, *TORCH_STEP), Phase.FORWARD, False),
        (IN_CLOSURE, Phase.FORWARD, False),
        ((*FORWARD[:2], CLOSURE, *OWN_STEP), Phase.FORWARD, False),
        ((LAYER, Frame("/home/me/loss.py", 70, "backward"), *BACKWARD), Phase.BACKWARD, False),
        ((LAYER, *RECOMPUTED), Phase.BACKWARD, True),
        ((LAYER, BLOCK, Frame(CHECKPOINT, 1590, "recompute_fn"), *BACKWARD), Phase.BACKWARD, True),
        ((LAYER, BLOCK, Frame(CHECKPOINT, 310, "backward")), Phase.BACKWARD, True),
        ((*BACKWARD[:2], Frame(CHECKPOINT, 325, "backward")), Phase.BACKWARD, False),
    ],
)
def test_the_caller_of_a_function_of_layers_shows_what_it_is_for(stack: Stack, doing: Phase, recomputes: bool):
    said = StackReader()(stack)
    assert (said[0], Mark.RECOMPUTE in said[1]) == (doing, recomputes)


class Closures(Annotated):
    """Steps that run the model inside, as those of Lightning do."""

    def step(self, *, zero_grad: bool = False) -> dict[str, int]:
        """Return the event of each kind in one step."""
        first = len(self.builder)
        events = {}
        if zero_grad:
            self.free(self.make(MiB, CLOSURE_CODE, Category.UNKNOWN))
            self.spans.append(("Optimizer.zero_grad#AdamW.zero_grad", first, len(self.builder) - 1))
            events["zero_grad"] = first
        saved = self.make(40 * MiB, IN_CLOSURE, Category.ACTIVATION)
        events["forward"] = len(self.builder) - 1
        gradient = self.make(8 * MiB, (), Category.GRADIENT)
        events["backward"] = len(self.builder) - 1
        events["free"] = len(self.builder)
        self.free(saved)
        self.optimize(gradient=gradient)
        name, _, events["optimizer"] = self.spans[-1]
        self.spans[-1] = (name, first, events["optimizer"])
        return events


CLOSURE_CODE: Stack = (CLOSURE, *TORCH_STEP)


@pytest.mark.parametrize("zero_grad", [False, True])
def test_what_a_closure_runs_is_no_step(zero_grad: bool):
    job = Closures()
    steps = [job.step(zero_grad=zero_grad) for _ in range(2)]
    at = job.inferred().activity.at
    expected = {
        "zero_grad": Phase.ZERO_GRAD,
        "forward": Phase.FORWARD,
        "backward": Phase.BACKWARD,
        "free": Phase.BACKWARD,
        "optimizer": Phase.OPTIMIZER,
    }
    assert [{name: Phase(int(at[event])) for name, event in step.items()} for step in steps] == [
        {name: doing for name, doing in expected.items() if name in step} for step in steps
    ]


def test_a_span_without_a_start_began_before_the_recording():
    job = Annotated()
    for _ in range(4):
        job.make(MiB, FORWARD, Category.KEPT)
    trace = job.timeline().trace

    def mark(name: str, stage: str, event: int) -> Annotation:
        return Annotation(name=name, stage=stage, device=0, time_us=int(trace.time_us[event]))

    marks = [
        mark("a", "END", 1),
        mark("b", "START", 2),
        mark("b", "END", 3),
        mark("b", "END", 4),
        mark("c", "START", 4),
    ]
    assert spans_of(trace, marks) == [Span("a", 0, 2), Span("b", 2, 4)]
