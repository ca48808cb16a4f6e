"""Blocks get their categories from what was told of them, from their sizes and from their lifetimes."""

from __future__ import annotations

import pytest

from oomscope.probe.recording.block_label import BlockLabel
from oomscope.probe.recording.categorise import categorise
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import Action, Category, Frame, Moment
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder

INIT = Moment("init", -1, -1)
FORWARD = Moment("forward", 0, 0)
LOSS = Moment("loss", 0, 0)
BACKWARD = Moment("backward", 0, 0)
OPTIMIZER = Moment("optimizer", 0, -1)
LINE, OTHER_LINE = (Frame("model.py", 3, "forward"),), (Frame("model.py", 4, "forward"),)


class Script:
    """Writes a trace."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.allocations = 0

    def alloc(
        self,
        address: int,
        moment: Moment = FORWARD,
        category: Category = Category.UNKNOWN,
        *,
        size: int = 512,
        stack: tuple[Frame, ...] = LINE,
        stream: int = 0,
    ) -> int:
        self.allocations += 1
        return self.builder.event(
            Action.ALLOC, address, size, stream=stream, moment=moment, category=category, stack=stack
        )

    def free(self, address: int, moment: Moment = FORWARD, *, size: int = 512) -> None:
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            self.builder.event(action, address, size, moment=moment)

    def fail(self, moment: Moment) -> None:
        self.builder.event(Action.OOM, 0, 512, moment=moment)

    def categories(
        self,
        *labels: BlockLabel,
        allocations: int | None = None,
        workspaces: tuple[int, ...] = (),
        keeps_workspaces: bool = False,
    ) -> list[str]:
        timeline = Timeline.of(self.builder.build(), ())
        trace = categorise(
            timeline, labels, allocations=allocations, workspaces=workspaces, keeps_workspaces=keeps_workspaces
        )
        allocs = (trace.action == Action.ALLOC).nonzero()[0].tolist()
        return [Category(trace.category[event]).label for event in allocs]


@pytest.fixture
def script() -> Script:
    return Script()


def test_a_label_goes_to_the_block_that_held_the_address_then(script: Script) -> None:
    script.alloc(0x100)
    script.free(0x100, BACKWARD)
    script.alloc(0x100)
    labels = (BlockLabel(0x100, 1, Category.PARAMETER), BlockLabel(0x100, 2, Category.GRADIENT))
    assert script.categories(*labels) == ["parameter", "gradient"]


def test_a_main_gradient_stays_one_where_it_is_also_set_as_a_gradient(script: Script) -> None:
    script.alloc(0x100)
    main, gradient = (BlockLabel(0x100, 1, each) for each in (Category.MAIN_GRADIENT, Category.GRADIENT))
    assert script.categories(main, gradient) == script.categories(gradient, main) == ["main_gradient"]


def test_blocks_that_were_allocated_before_the_recording_count(script: Script) -> None:
    script.alloc(0x100)
    script.free(0x100)
    script.alloc(0x100)
    labels = BlockLabel(0x100, 11, Category.PARAMETER)  # ten blocks before the recording, one of it
    assert script.categories(labels, allocations=12) == ["parameter", "activation"]


def test_what_outlives_its_forward_is_an_activation(script: Script) -> None:
    script.alloc(0x100)
    script.alloc(0x200)
    script.free(0x100)
    script.alloc(0x300, LOSS)
    script.free(0x200, LOSS)  # forward and loss of a microbatch are one
    script.free(0x300, BACKWARD)
    assert script.categories() == ["temporary", "temporary", "activation"]


def test_events_of_a_thread_that_nobody_follows_end_no_phase(script: Script) -> None:
    script.alloc(0x100)
    script.alloc(0x200, Moment("", -1, -1))
    script.free(0x100)
    script.free(0x200)
    script.alloc(0x300, BACKWARD)
    assert script.categories() == ["temporary", "temporary", "temporary"]


def test_what_outlives_its_backward_is_not_known(script: Script) -> None:
    script.alloc(0x100, BACKWARD)
    script.alloc(0x200, BACKWARD)
    script.free(0x200, BACKWARD)
    script.free(0x100, OPTIMIZER)
    assert script.categories() == ["unknown", "temporary"]


def test_what_was_made_before_training_is_not_known(script: Script) -> None:
    script.alloc(0x100, INIT)
    script.alloc(0x200, INIT)
    script.free(0x200, INIT)
    script.alloc(0x300)
    assert script.categories() == ["unknown", "unknown", "activation"]


def test_a_failure_cuts_lives_short(script: Script) -> None:
    script.alloc(0x100)
    script.alloc(0x200, BACKWARD)
    script.fail(BACKWARD)
    script.free(0x200, INIT)
    script.free(0x100, INIT)
    assert script.categories() == ["activation", "temporary"]


def test_what_a_failed_forward_held_is_activation_though_the_program_tries_again(script: Script) -> None:
    script.alloc(0x100)
    script.alloc(0x200)
    script.free(0x200)
    script.fail(FORWARD)
    script.free(0x100)
    script.alloc(0x100)
    script.free(0x100, BACKWARD)
    assert script.categories() == ["activation", "temporary", "activation"]


def test_categories_of_the_trace_come_after_labels_and_before_lifetimes(script: Script) -> None:
    script.alloc(0x100, BACKWARD, Category.ACTIVATION)
    script.alloc(0x200, BACKWARD, Category.ACTIVATION)
    assert script.categories(BlockLabel(0x200, 2, Category.GRADIENT)) == ["activation", "gradient"]


WORKSPACE, SMALL = 32 * MiB, MiB


def test_a_workspace_is_freed_before_anything_else_is_allocated(script: Script) -> None:
    script.alloc(0x100, size=WORKSPACE)  # the product
    script.alloc(0x200, size=WORKSPACE)
    script.free(0x200, size=WORKSPACE)
    script.alloc(0x300, stack=OTHER_LINE)
    script.free(0x100, size=WORKSPACE)
    assert script.categories(workspaces=(WORKSPACE,))[:2] == ["temporary", "workspace"]


def test_a_small_workspace_follows_the_product_of_its_line(script: Script) -> None:
    for line in (LINE, OTHER_LINE, LINE):
        script.alloc(0x200, size=SMALL, stack=line)
        script.free(0x200, size=SMALL)
        script.alloc(0x300 + 0x100 * script.allocations, stack=LINE)
    categories = script.categories(workspaces=(SMALL,))
    assert categories == ["temporary", "activation", "temporary", "activation", "workspace", "activation"]


def test_of_those_that_are_kept_each_thread_and_stream_has_one(script: Script) -> None:
    script.alloc(0x100, size=WORKSPACE)
    script.alloc(0x200, size=WORKSPACE)
    script.alloc(0x300, BACKWARD, size=WORKSPACE, stack=())
    script.alloc(0x400, size=WORKSPACE, stream=7)
    categories = script.categories(workspaces=(WORKSPACE,), keeps_workspaces=True)
    assert categories == ["activation", "workspace", "workspace", "workspace"]


def test_a_kept_workspace_lies_behind_the_first_product_s_result(script: Script) -> None:
    script.alloc(0x100, INIT, size=WORKSPACE)
    script.alloc(0x200, stack=OTHER_LINE)
    script.alloc(0x300, stack=OTHER_LINE, size=WORKSPACE)
    categories = script.categories(workspaces=(WORKSPACE,), keeps_workspaces=True)
    assert categories == ["unknown", "activation", "workspace"]


def test_a_first_product_that_writes_into_what_is_there_leaves_its_workspace_alone(script: Script) -> None:
    script.alloc(0x100, INIT, size=WORKSPACE)
    script.alloc(0x200, size=WORKSPACE)
    categories = script.categories(workspaces=(WORKSPACE,), keeps_workspaces=True)
    assert categories == ["unknown", "workspace"]


def test_torch_that_keeps_no_workspace_has_none_that_lasts(script: Script) -> None:
    script.alloc(0x100, INIT, size=WORKSPACE)
    script.alloc(0x200)
    script.alloc(0x300, size=WORKSPACE)
    assert script.categories(workspaces=(WORKSPACE,)) == ["unknown", "activation", "activation"]


@pytest.mark.parametrize("kind", [Category.PARAMETER, Category.COMMUNICATION])
def test_a_labelled_block_is_no_workspace(script: Script, kind: Category) -> None:
    script.alloc(0x100)
    script.alloc(0x200, size=WORKSPACE)
    script.free(0x200, size=WORKSPACE)
    script.alloc(0x300)
    categories = script.categories(BlockLabel(0x200, 2, kind), workspaces=(WORKSPACE,))
    assert categories == ["activation", kind.label, "activation"]


def test_a_weight_of_a_workspace_s_size_takes_no_workspace_s_place(script: Script) -> None:
    for address in (0x100, 0x200, 0x300):
        script.alloc(address, size=WORKSPACE)
    weights = BlockLabel(0x100, 1, Category.PARAMETER), BlockLabel(0x200, 2, Category.PARAMETER)
    categories = script.categories(*weights, workspaces=(WORKSPACE,), keeps_workspaces=True)
    assert categories == ["parameter", "parameter", "workspace"]


RECEIVED = BlockLabel(0x100, 1, Category.COMMUNICATION)


def test_what_other_ranks_sent_passes_or_is_an_activation(script: Script) -> None:
    script.alloc(0x100)
    script.alloc(0x200)
    script.free(0x100)
    script.free(0x200, BACKWARD)
    sent = (RECEIVED, BlockLabel(0x200, 2, Category.COMMUNICATION))
    assert script.categories(*sent) == ["communication", "activation"]


def test_what_a_collective_writes_into_keeps_its_purpose(script: Script) -> None:
    script.alloc(0x100)
    gradient = BlockLabel(0x100, 1, Category.GRADIENT)
    assert script.categories(gradient, RECEIVED) == script.categories(RECEIVED, gradient) == ["gradient"]


@pytest.mark.parametrize(
    ("file", "function", "category"),
    [
        ("torch/distributed/distributed_c10d.py", "all_gather_object", "communication"),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "allocate", "communication"),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "alloc_storage", "parameter"),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "to_accumulated_grad_if_needed", "temporary"),
        ("torch/distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded_flat_param", "parameter"),
        ("torch/distributed/fsdp/_flat_param.py", "unshard_grad", "temporary"),
        ("deepspeed/runtime/zero/partition_parameters.py", "_all_gather_sequential", "parameter"),
        ("deepspeed/runtime/zero/partition_parameters.py", "_partition_gradient", "temporary"),
        ("deepspeed/runtime/zero/utils.py", "defragment", "parameter"),
    ],
)
def test_code_of_libraries_shows_what_several_ranks_need(
    script: Script, file: str, function: str, category: str
) -> None:
    librarys = Frame(f"/x/site-packages/{file}", 9, function)
    inner = Frame("/x/site-packages/torch/utils/_contextlib.py", 1, "wrapper")
    script.alloc(0x100, BACKWARD, stack=(inner, librarys, *LINE))
    script.alloc(0x200, BACKWARD, stack=(*LINE, librarys))
    for address in (0x100, 0x200):
        script.free(address, BACKWARD)
    assert script.categories() == [category, "temporary"]


def test_gradients_pass_through_the_buckets_of_deepspeed(script: Script) -> None:
    for number, (file, function) in enumerate(
        [
            ("stage_1_and_2.py", "setup_buckets"),
            ("stage_1_and_2.py", "copy_grads_in_partition"),
            ("stage3.py", "_setup_for_real_optimizer"),
        ]
    ):
        stack = (Frame(f"/x/deepspeed/runtime/zero/{file}", 9, function), *LINE)
        script.alloc(0x1000 + 0x2000 * number, INIT, stack=stack)
        script.alloc(0x2000 + 0x2000 * number, INIT, stack=stack)
    script.alloc(0x9000, OPTIMIZER)
    labels = [BlockLabel(0x1000 + 0x2000 * number, 7, Category.GRADIENT) for number in range(3)]
    assert script.categories(*labels)[:6] == [
        *("communication", "communication"),
        *("gradient", "gradient"),
        *("communication", "gradient"),
    ]


def test_whole_weights_are_parameters_though_others_sent_them_and_backward_needs_them(script: Script) -> None:
    gathered = Frame("/x/torch/distributed/fsdp/_flat_param.py", 9, "_alloc_padded_unsharded_flat_param")
    for address in (0x100, 0x200):
        script.alloc(address, size=WORKSPACE, stack=(gathered, *LINE))
    script.free(0x200, size=WORKSPACE)
    script.free(0x100, BACKWARD, size=WORKSPACE)
    received = (RECEIVED, BlockLabel(0x200, 2, Category.COMMUNICATION))
    assert script.categories(*received, workspaces=(WORKSPACE,)) == ["parameter", "parameter"]
    assert script.categories(workspaces=(WORKSPACE,)) == ["parameter", "parameter"]


def test_states_of_keras_optimizers_are_known_by_the_function_that_makes_them(script: Script) -> None:
    stack = (
        Frame("/x/keras/src/ops.py", 1, "zeros"),
        Frame("/x/keras/src/optimizers/base_optimizer.py", 2, "add_variable"),
    )
    for address in (0x100, 0x200):
        script.alloc(address, LOSS, stack=stack)
    script.alloc(0x300, LOSS)
    script.free(0x200, LOSS)
    script.alloc(0x400, OPTIMIZER, stack=stack)
    script.alloc(0x500, Moment("forward", 0, 1))
    assert script.categories()[:4] == ["optimizer_state", "temporary", "activation", "optimizer_state"]
