"""What stacks, annotations and metadata say that the program was doing."""

from __future__ import annotations

import pytest

from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.infer.activity import Doing, Mark, StackReader, activity_of, marks_of_frame
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Annotation, Frame, Moment

from . import foreign
from .foreign import TORCH


@pytest.mark.parametrize(
    ("frame", "mark"),
    [
        (Frame(f"{TORCH}/optim/adam.py", 10, "_init_group"), Mark.OPTIMIZER | Mark.STATE_INIT),
        (Frame(f"{TORCH}/optim/sgd.py", 10, "step"), Mark.OPTIMIZER),
        (Frame(f"{TORCH}/optim/lr_scheduler.py", 10, "step"), Mark.NOTHING),
        (Frame("/x/megatron/core/optimizer/distrib_optimizer.py", 10, "step_with_ready_grads"), Mark.OPTIMIZER),
        (Frame("/home/me/optimizers.py", 10, "AdamW.step"), Mark.OPTIMIZER),
        (Frame("/home/me/optim-project/train.py", 10, "step"), Mark.NOTHING),
        (Frame("/home/me/trainer.py", 10, "training_step"), Mark.NOTHING),
        (Frame(f"{TORCH}/optim/optimizer.py", 10, "zero_grad"), Mark.ZERO_GRAD),
        (Frame(f"{TORCH}/autograd/graph.py", 10, "_engine_run_backward"), Mark.BACKWARD),
        (Frame(f"{TORCH}/nn/modules/module.py", 10, "_call_impl"), Mark.FORWARD),
        (Frame(f"{TORCH}/nn/modules/module.py", 10, "_apply"), Mark.MODULE_MOVE),
        (Frame(f"{TORCH}/distributed/distributed_c10d.py", 10, "all_gather_into_tensor"), Mark.COMMUNICATION),
        (Frame("/x/megatron/core/distributed/param_and_grad_buffer.py", 10, "__init__"), Mark.GRAD_BUFFER),
        (Frame("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<...>&)"), Mark.BACKWARD),
        (Frame("??", 0, "torch::autograd::AccumulateGrad::apply()"), Mark.BACKWARD | Mark.ACCUMULATE_GRAD),
        (Frame("CUDABlas.cpp", 0, "at::cuda::blas::getCUDABlasLtWorkspaceSize()"), Mark.WORKSPACE),
        (Frame("??", 0, "at::_ops::mul_Tensor::call(at::Tensor const&)"), Mark.NOTHING),
    ],
)
def test_what_a_frame_says(frame, mark):
    assert marks_of_frame(frame) == mark


@pytest.mark.parametrize(
    ("stack", "doing"),
    [
        (foreign.FORWARD, Doing.FORWARD),
        (foreign.BACKWARD, Doing.BACKWARD),
        (foreign.STEP, Doing.OPTIMIZER),
        (foreign.RECOMPUTED, Doing.BACKWARD),
        ((*foreign.STEP[:2], *foreign.BACKWARD), Doing.OPTIMIZER),  # a step from a hook on gradients
        ((*foreign.BACKWARD[:2], *foreign.FORWARD), Doing.BACKWARD),  # a module whose forward trains
        (foreign.LOSS, Doing.UNKNOWN),
        ((), Doing.UNKNOWN),
    ],
)
def test_the_innermost_telling_frame_counts(stack, doing):
    assert StackReader()(stack)[0] == doing


def test_only_a_forward_inside_backward_is_a_recomputation():
    read = StackReader()
    assert Mark.RECOMPUTE in read(foreign.RECOMPUTED)[1]
    assert Mark.RECOMPUTE not in read((*foreign.BACKWARD[:2], *foreign.FORWARD))[1]


def activity(events, annotations=()):
    builder = TraceBuilder()
    for index, (stack, moment) in enumerate(events):
        builder.event(Action.ALLOC, 512 * (index + 1), 512, 0, 10 * index, stack, moment)
    return activity_of(Timeline.of(builder.build()), annotations)


NOWHEN = Moment("", -1, -1)


def test_events_in_between_go_on_doing_what_was_done():
    found = activity([(stack, NOWHEN) for stack in (foreign.LOSS, foreign.FORWARD, foreign.LOSS, foreign.BACKWARD)])
    assert found.at.tolist() == [Doing.UNKNOWN, Doing.FORWARD, Doing.FORWARD, Doing.BACKWARD]
    assert found.own.tolist() == [Doing.UNKNOWN, Doing.FORWARD, Doing.UNKNOWN, Doing.BACKWARD]
    assert found.span.tolist() == [0, 1, 1, 2]


def test_an_empty_stack_is_the_engines_only_after_a_forward():
    found = activity([(stack, NOWHEN) for stack in ((), foreign.FORWARD, (), foreign.STEP, ())])
    assert found.own.tolist() == [0, Doing.FORWARD, Doing.BACKWARD, Doing.OPTIMIZER, 0]


def test_metadata_counts_before_annotations_and_these_before_stacks():
    marks = [
        Annotation(name="Optimizer.step#AdamW.step", stage=stage, device=0, time_us=time)
        for stage, time in (("START", 9), ("END", 21))
    ]
    events = [(foreign.FORWARD, NOWHEN), (foreign.LOSS, NOWHEN), (foreign.LOSS, Moment("loss", 0, 0)), ((), NOWHEN)]
    assert activity(events, marks).at.tolist() == [Doing.FORWARD, Doing.OPTIMIZER, Doing.FORWARD, Doing.BACKWARD]


def test_spans_that_never_end_and_ends_without_a_start_are_passed_over():
    marks = [Annotation(name="backward", stage="START", device=0, time_us=1)]
    marks += [Annotation(name="forward", stage="END", device=0, time_us=1)]
    assert activity([(foreign.LOSS, NOWHEN)] * 2, marks).at.tolist() == [0, 0]
