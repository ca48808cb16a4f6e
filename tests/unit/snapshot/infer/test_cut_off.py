"""Blocks that a failure caught in a step or in backward, before their lifetimes tell what they are."""

from __future__ import annotations

import numpy as np
import pytest

from oomscope.snapshot.explain.composition import composition_at
from oomscope.snapshot.infer.categorise import categorise
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.trace import Category, Frame, Stack
from oomscope.units import MiB
from tests.unit.snapshot import foreign
from tests.unit.snapshot.foreign import PARAMETERS, Training

SIZE = 5 * MiB
FOREACH = Frame("", 0, "at::native::foreach_tensor_div_list_kernel_cuda(c10::ArrayRef<at::Tensor>)")


def in_step(file: str, *functions: str, line: int = 100) -> Stack:
    """Return the stack of an optimizer's step, innermost function first."""
    frames = (Frame(file, line + number, name) for number, name in enumerate((*functions, "step")))
    return (*frames, *foreign.STEP[1:])


def of_torch(file: str, *functions: str, line: int = 100) -> Stack:
    return in_step(f"{foreign.TORCH}/optim/{file}.py", *functions, line=line)


def before_step() -> Training:
    job = Training()
    job.build()
    job.gradients = [job.make(size, foreign.BACKWARD, Category.GRADIENT) for size in PARAMETERS]
    return job


def told_of_last(job: Training, count: int = 1) -> set[tuple[Category, Confidence]]:
    """Return what is told of the blocks allocated last."""
    timeline = job.timeline()
    evidence = categorise(timeline)
    rows = np.argsort(timeline.lifetimes.born)[-count:]
    return {(Category(evidence.category[row]), Confidence(evidence.confidence[row])) for row in rows}


@pytest.mark.parametrize(
    "update",
    [of_torch("adam", "_multi_tensor_adam", "adam"), of_torch("adam", "adam"), (FOREACH, *of_torch("adam", "adam"))],
    ids=["function", "file", "foreach"],
)
def test_lists_of_a_first_step_beside_states_made_elsewhere_are_temporary(update):
    job = before_step()
    for size in PARAMETERS * 2:
        job.make(size, of_torch("adam", "_init_group"), Category.OPTIMIZER_STATE)
    for size in PARAMETERS:
        job.make(size, update, Category.TEMPORARY)
    assert told_of_last(job, 2) == {(Category.TEMPORARY, Confidence.MEDIUM)}
    assert told_of_last(job, 6) == {
        (Category.TEMPORARY, Confidence.MEDIUM),
        (Category.OPTIMIZER_STATE, Confidence.HIGH),
    }


def test_lists_of_a_step_whose_states_are_from_before_the_recording_are_temporary():
    job = before_step()
    job.make(SIZE, of_torch("rmsprop", "_multi_tensor_rmsprop", "rmsprop"), Category.TEMPORARY)
    assert told_of_last(job) == {(Category.TEMPORARY, Confidence.MEDIUM)}


def test_a_foreach_operation_in_anybodys_step_gives_temporaries():
    job = before_step()
    job.make(SIZE, (FOREACH, *in_step("/home/me/lion_optim.py")), Category.TEMPORARY)
    assert told_of_last(job) == {(Category.TEMPORARY, Confidence.MEDIUM)}


@pytest.mark.parametrize(
    "made",
    [
        of_torch("sgd", "_multi_tensor_sgd", "sgd"),
        of_torch("lbfgs"),
        in_step("/opt/venv/lib/python3.12/site-packages/transformers/optimization.py"),
        in_step("/home/me/muon.py"),
        in_step("/opt/venv/lib/python3.12/site-packages/apex/optimizers/fused_adam.py"),
        in_step("/home/me/optim/soap.py", "init_preconditioner"),
    ],
    ids=["momentum", "lbfgs", "adafactor", "muon", "apex", "soap"],
)
def test_states_made_lazily_in_a_step_are_states_that_may_be_something_else(made):
    job = before_step()
    for size in PARAMETERS:
        job.make(size, made, Category.OPTIMIZER_STATE)
    assert told_of_last(job, 2) == {(Category.OPTIMIZER_STATE, Confidence.LOW)}


def test_states_of_an_optimizer_within_another_that_only_makes_its_own_elsewhere_are_states():
    """DeepSpeed's optimizers call another's step; what their own initialisation makes says nothing of its states."""
    outer = "/opt/venv/lib/python3.12/site-packages/deepspeed/runtime/zero/stage_1_and_2.py"
    inner = in_step("/opt/venv/lib/python3.12/site-packages/deepspeed/ops/adam/fused_adam.py")
    job = before_step()
    job.make(SIZE, in_step(outer, "initialize_optimizer_states"), Category.OPTIMIZER_STATE)
    job.make(SIZE, (inner[0], *in_step(outer)), Category.OPTIMIZER_STATE)
    assert told_of_last(job) == {(Category.OPTIMIZER_STATE, Confidence.LOW)}


@pytest.mark.parametrize("kept", [False, True])
def test_a_line_of_a_step_does_with_another_size_what_it_did_before(kept):
    line = in_step("/home/me/muon.py")
    job = trained_with(line, kept=kept)
    job.make(SIZE, line, Category.UNKNOWN)
    expected = Category.OPTIMIZER_STATE if kept else Category.TEMPORARY
    assert told_of_last(job) == {(expected, Confidence.MEDIUM)}


def trained_with(line: Stack, *, kept: bool) -> Training:
    """Return a job whose first step made a block at ``line``, up to the second step."""
    job = before_step()
    block = job.make(3 * SIZE, line, Category.UNKNOWN)
    if not kept:
        job.free(block)
    job.make(SIZE, foreign.FORWARD, Category.ACTIVATION)
    job.make(8 * MiB, foreign.BACKWARD, Category.GRADIENT)
    return job


@pytest.mark.parametrize("gives_up", [False, True], ids=["dumped at once", "dumped when all is given up"])
def test_what_a_failure_in_forward_leaves_are_activations_whenever_the_snapshot_was_written(gives_up):
    job = Training(total=256 * MiB)
    job.build()
    held = [job.make(30 * MiB, foreign.FORWARD, Category.ACTIVATION) for _ in range(4)]
    assert job.alloc(200 * MiB, stack=foreign.FORWARD) is None
    if gives_up:
        for block in held:
            job.free(block)
    assert told_of_last(job, len(held)) == {(Category.ACTIVATION, Confidence.MEDIUM)}


def test_a_failure_that_a_program_survives_says_nothing_of_what_it_held():
    job = Training(total=256 * MiB)
    job.build()
    held = job.make(30 * MiB, foreign.FORWARD, Category.TEMPORARY)
    assert job.alloc(200 * MiB, stack=foreign.FORWARD) is None
    job.free(job.make(20 * MiB, foreign.FORWARD, Category.TEMPORARY))
    job.free(held)
    assert {category for category, _ in told_of_last(job, 2)} == {Category.TEMPORARY}


def cut_in_backward(*sizes: int, stack: Stack = foreign.BACKWARD) -> Training:
    job = Training()
    job.build()
    job.make(40 * MiB, foreign.FORWARD, Category.ACTIVATION)
    for size in sizes:
        job.make(size, stack, Category.UNKNOWN)
    return job


@pytest.mark.parametrize("backward", [foreign.BACKWARD, foreign.ENGINE], ids=["python frames", "no frames"])
def test_of_blocks_cut_off_in_backward_those_of_a_parameters_size_are_gradients(backward):
    assert told_of_last(cut_in_backward(PARAMETERS[1], stack=backward)) == {(Category.GRADIENT, Confidence.LOW)}
    assert told_of_last(cut_in_backward(9 * MiB, stack=backward)) == {(Category.TEMPORARY, Confidence.LOW)}


def test_there_are_no_more_gradients_of_a_size_than_parameters():
    job = cut_in_backward(PARAMETERS[1], PARAMETERS[1])
    assert told_of_last(job) == {(Category.TEMPORARY, Confidence.LOW)}
    assert told_of_last(job, 2) == {(Category.TEMPORARY, Confidence.LOW), (Category.GRADIENT, Confidence.LOW)}


def test_with_varying_lengths_gradients_of_activations_are_no_gradients():
    job = Training()
    job.build()
    job.step()
    job.make(80 * MiB, foreign.FORWARD, Category.ACTIVATION)
    job.make(18 * MiB, foreign.BACKWARD, Category.TEMPORARY)
    assert told_of_last(job) == {(Category.TEMPORARY, Confidence.LOW)}


def test_where_no_parameter_is_known_what_backward_left_may_be_gradients():
    job = Training()
    job.make(40 * MiB, foreign.FORWARD, Category.ACTIVATION)
    job.make(9 * MiB, foreign.BACKWARD, Category.GRADIENT)
    assert told_of_last(job) == {(Category.GRADIENT, Confidence.LOW)}


def test_the_gradient_of_a_flat_parameter_is_of_the_size_that_was_collected():
    gather = Frame(f"{foreign.TORCH}/distributed/distributed_c10d.py", 4000, "all_gather_into_tensor")
    job = Training()
    job.build()
    job.make(4 * sum(PARAMETERS), (gather, *foreign.FORWARD), Category.COMMUNICATION)
    job.make(40 * MiB, foreign.FORWARD, Category.ACTIVATION)
    job.make(4 * sum(PARAMETERS), foreign.BACKWARD, Category.GRADIENT)
    assert told_of_last(job) == {(Category.GRADIENT, Confidence.LOW)}


def test_buckets_are_of_no_parameters_size_and_communication():
    bucket = (Frame(f"{foreign.TORCH}/nn/parallel/distributed.py", 1200, "_ddp_init_helper"), foreign.MAIN)
    job = Training()
    job.build()
    job.make(20 * MiB, bucket, Category.COMMUNICATION)
    job.make(20 * MiB, foreign.BACKWARD, Category.TEMPORARY)
    timeline = job.timeline()
    told = categorise(timeline).category[np.argsort(timeline.lifetimes.born)[-2:]].tolist()
    assert told == [Category.COMMUNICATION, Category.TEMPORARY]


@pytest.mark.parametrize(("doubtful", "said"), [(MiB, "high"), (16 * MiB, "low")])
def test_a_sum_is_no_surer_than_a_tenth_of_it(doubtful, said):
    job = before_step()
    for size in PARAMETERS:
        job.make(size, of_torch("adam", "_init_group"), Category.OPTIMIZER_STATE)
    job.make(doubtful, in_step("/home/me/muon.py"), Category.OPTIMIZER_STATE)
    timeline = job.timeline()
    composition = composition_at(timeline, timeline.peak_event(), categorise(timeline))
    assert {row.category: row.confidence for row in composition.categories}["optimizer_state"] == said
