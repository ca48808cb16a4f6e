"""What stacks and spans tell where a model and an optimizer call each other."""

from __future__ import annotations

import pytest

from oomscope.snapshot.infer.activity import Doing, Mark, StackReader
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
        ((LAYER, *FORWARD), Doing.FORWARD, False),
        ((LAYER, MAIN), Doing.FORWARD, False),
        ((LAYER, *OWN_STEP), Doing.OPTIMIZER, False),
        ((LAYER, CLOSURE, *TORCH_STEP), Doing.FORWARD, False),
        (IN_CLOSURE, Doing.FORWARD, False),
        ((*FORWARD[:2], CLOSURE, *OWN_STEP), Doing.FORWARD, False),
        ((LAYER, Frame("/home/me/loss.py", 70, "backward"), *BACKWARD), Doing.BACKWARD, False),
        ((LAYER, *RECOMPUTED), Doing.BACKWARD, True),
        ((LAYER, BLOCK, Frame(CHECKPOINT, 1590, "recompute_fn"), *BACKWARD), Doing.BACKWARD, True),
        ((LAYER, BLOCK, Frame(CHECKPOINT, 310, "backward")), Doing.BACKWARD, True),
        ((*BACKWARD[:2], Frame(CHECKPOINT, 325, "backward")), Doing.BACKWARD, False),
    ],
)
def test_who_called_a_function_of_layers_tells_what_it_is_for(stack: Stack, doing: Doing, recomputes: bool):
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
        "zero_grad": Doing.ZERO_GRAD,
        "forward": Doing.FORWARD,
        "backward": Doing.BACKWARD,
        "free": Doing.BACKWARD,
        "optimizer": Doing.OPTIMIZER,
    }
    assert [{name: Doing(int(at[event])) for name, event in step.items()} for step in steps] == [
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
