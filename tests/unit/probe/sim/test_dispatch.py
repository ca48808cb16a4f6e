"""Every storage on the device is seen born and freed, and nothing else is."""

from __future__ import annotations

import math

import pytest
import torch

from oomscope.errors import UntestableError
from oomscope.snapshot.trace import Action
from oomscope.units import MiB


def test_views_and_in_place_operations_allocate_nothing(simulate, story):
    session = simulate()
    with session:
        x = torch.empty(64, 64, device=session.device)
        x.view(-1).add_(1).reshape(64, 64).t()[3:5].mul_(2)
        x.copy_(x)
        x.zero_()
    assert story(session.measurement()).allocations() == [64 * 64 * 4]


def test_a_block_is_freed_when_its_last_view_dies(simulate, story):
    session = simulate()
    with session:
        x = torch.empty(1024, device=session.device)
        view = x[:1]
        del x
        assert torch.sim.memory_allocated() == 4096
        del view
        assert torch.sim.memory_allocated() == 0
    assert story(session.measurement()).actions() == [
        Action.SEGMENT_ALLOC,
        Action.ALLOC,
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
    ]


def test_storage_resizes_are_seen(simulate, story):
    session = simulate()
    with session:
        x = torch.empty(1024, device=session.device)
        x.untyped_storage().resize_(0)
        assert torch.sim.memory_allocated() == 0
        x.untyped_storage().resize_(4096)
        assert torch.sim.memory_allocated() == 4096
    assert story(session.measurement()).allocations() == [4096, 4096]


def test_a_resize_that_does_not_fit_raises(simulate):
    session = simulate(limit_bytes=30 * MiB)
    with session:
        x = torch.empty(1024, device=session.device)
        x.untyped_storage().resize_(0)
        with pytest.raises(torch.OutOfMemoryError):
            x.untyped_storage().resize_(100 * MiB)


def test_host_arithmetic_stays_real(simulate):
    with simulate():
        assert (torch.arange(5) * 2).tolist() == [0, 2, 4, 6, 8]
        assert torch.tensor([3.0]).item() == 3.0


def test_reads_of_device_data_get_the_documented_values(simulate):
    session = simulate()
    with session:
        x = torch.randn(3, 4, device=session.device)
        assert x.sum().item() == 1.0
        assert math.log(x.mean().item()) == 0.0
        assert not bool((x > 0).all())
        assert torch.tensor([5, 6], device=session.device).tolist() == [1, 1]
        assert torch.equal(x, x.clone())


def test_results_sized_by_data_are_as_large_as_can_be(simulate):
    session = simulate()
    with session:
        x = torch.randn(3, 4, device=session.device)
        assert x.nonzero().shape == (12, 2)
        assert x[x > 0].shape == (12,)
        assert x.masked_select(x > 0).shape == (12,)
        assert torch.unique(x).shape == (12,)


def test_literals_and_host_tensors_travel_to_the_device_as_inputs(simulate, story):
    session = simulate()
    with session, session.iteration(0):
        literal = torch.tensor([1.0, 2.0], device=session.device)
        moved = torch.ones(100).to(session.device)
        assert literal.device.type == moved.device.type == "sim"
    found = story(session.measurement())
    assert found.allocations() == [8, 400]
    assert found.categories() == {"input": 408}


def test_copies_to_the_host_are_host_allocations(simulate):
    session = simulate()
    with session:
        x = torch.empty(MiB, dtype=torch.uint8, device=session.device)
        pageable = x.cpu()
        pinned = torch.empty(2 * MiB, dtype=torch.uint8, pin_memory=True)
        assert pinned.is_pinned()
        assert not pageable.is_pinned()
        pinned[:MiB].copy_(x, non_blocking=True)
        assert torch.randn(4).pin_memory().is_pinned()
        real = torch.zeros(MiB, dtype=torch.uint8)
        real.copy_(x)
    measured = session.measurement()
    assert measured.host_bytes == MiB
    assert measured.pinned_bytes == 2 * MiB + 16


def test_save_on_cpu_moves_saved_tensors_to_pinned_host_memory(simulate):
    session = simulate()
    with session:
        w = torch.randn(512, 512, device=session.device, requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            y = (w.exp() * 1.0).sum()
        assert torch.sim.memory_allocated() == MiB + 512  # the weight and the loss: exp's result went to the host
        y.backward()
        assert w.grad is not None
    assert session.measurement().pinned_bytes == MiB


def test_streams_have_ids_of_their_own_and_own_what_is_allocated_on_them(simulate, story):
    session = simulate()
    with session:
        side, other = torch.sim.Stream(), torch.sim.Stream()
        assert side.stream_id != other.stream_id
        assert torch.sim.current_stream() == torch.sim.default_stream()
        with torch.sim.stream(side):
            assert torch.sim.current_stream() == side
            torch.empty(1024, device=session.device)
        with other:
            torch.empty(1024, device=session.device)
        assert torch.sim.current_stream().stream_id == 0
    trace = session.measurement().trace
    streams = [int(trace.stream[i]) for i in story(session.measurement()).indices()]
    assert streams == [side.stream_id, other.stream_id]


@pytest.mark.parametrize("lag", [0, 3])
def test_a_free_waits_for_the_streams_that_used_the_block(simulate, story, lag):
    session = simulate(stream_lag=lag)
    with session:
        side = torch.sim.Stream()
        x = torch.empty(1024, device=session.device)
        x.record_stream(side)
        del x
        assert torch.sim.memory_allocated() == 0
        kept = []
        for _ in range(lag):
            kept.append(torch.empty(1024, device=session.device))
            assert Action.FREE_COMPLETED not in story_so_far(session)
        kept.append(torch.empty(1024, device=session.device))
        assert Action.FREE_COMPLETED in story_so_far(session)


def story_so_far(session) -> list[Action]:
    return [Action(int(action)) for action in session.memory.builder.build().action]


def test_synchronising_a_stream_completes_its_frees(simulate):
    session = simulate(stream_lag=100)
    with session:
        side = torch.sim.Stream()
        x = torch.empty(1024, device=session.device)
        x.record_stream(side)
        del x
        side.synchronize()
        kept = torch.empty(1024, device=session.device)
        assert Action.FREE_COMPLETED in story_so_far(session)
        del kept


def test_backward_runs_on_the_stream_of_its_forward(simulate, story):
    session = simulate()
    with session, session.iteration(0):
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        side = torch.sim.Stream()
        with torch.sim.stream(side):
            y = x.exp()
        y.sum().backward()
    trace = session.measurement().trace
    found = story(session.measurement())
    streams = {int(trace.stream[i]) for i in found.indices("backward") if trace.size[i] == 64 * 64 * 4}
    assert streams == {side.stream_id}


@pytest.mark.parametrize(
    "use",
    [
        lambda device: torch.ones(3, device="cuda"),
        lambda device: torch.ones(3).cuda(),
        lambda device: torch.compile(lambda x: x)(torch.ones(3, device=device)),
    ],
    ids=["device", "method", "compile"],
)
def test_what_cannot_be_simulated_is_refused_with_the_reason(simulate, use):
    session = simulate()
    with session, pytest.raises(UntestableError, match="the target uses"):
        use(session.device)


def test_a_custom_kernel_without_a_shape_rule_is_refused_by_name(simulate):
    @torch.library.custom_op("oomscope_test::kernel", mutates_args=())
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    session = simulate()
    with session, pytest.raises(UntestableError, match=r"oomscope_test.kernel.* cannot be simulated"):
        kernel(torch.empty(4, device=session.device))


def test_received_buffers_are_communication_and_collectives_return_at_once(simulate, story, world):
    import torch.distributed as dist

    from oomscope.model.collectives import all_gather

    session = simulate()
    with session, session.iteration(0):
        part = torch.empty(256, device=session.device)
        dist.all_reduce(part)
        whole = torch.empty(256 * world, device=session.device)
        all_gather(whole, part, None)
        dist.isend(part, 5).wait()
        del whole
    assert story(session.measurement()).categories() == {"temporary": 1024, "communication": 1024 * world}


@pytest.fixture
def world():
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("sim:fake,cpu:fake", rank=0, world_size=8, store=FakeStore())
    yield 8
    dist.destroy_process_group()


def test_tensor_parallel_dtensors_hold_their_shard(simulate, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    session = simulate()
    mesh = init_device_mesh("sim", (world,))
    with session:
        model = torch.nn.Sequential(
            torch.nn.Linear(1024, 1024, device=session.device, bias=False),
            torch.nn.Linear(1024, 1024, device=session.device, bias=False),
        )
        model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        assert torch.sim.memory_allocated() == 2 * 4 * MiB // world
        model(torch.randn(8, 1024, device=session.device)).sum().backward()
        assert model[0].weight.grad.to_local().shape == (1024 // world, 1024)


def test_fully_sharded_parameters_are_gathered_one_layer_at_a_time(simulate, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    session = simulate()
    mesh = init_device_mesh("sim", (world,))
    with session:
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, device=session.device, bias=False) for _ in range(8)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        shards = torch.sim.memory_allocated()
        assert shards == 8 * 4 * MiB // world
        model(torch.randn(8, 1024, device=session.device)).sum().backward()
        whole = 8 * 4 * MiB
        assert torch.sim.max_memory_allocated() < shards + whole


def test_outputs_that_grow_are_seen(simulate, story):
    session = simulate()
    with session:
        a = torch.randn(1024, device=session.device)
        out = torch.empty(0, device=session.device)
        torch.add(a, a, out=out)
        grown = torch.empty(0, device=session.device).resize_(512)
        assert torch.sim.memory_allocated() == 4096 + 4096 + 2048
        del grown
    assert story(session.measurement()).allocations() == [4096, 4096, 2048]


def test_a_function_made_ready_to_compile_is_refused_only_when_called(simulate):
    with simulate() as session:

        @torch.compile
        def never_called(x):
            return x

        @torch.compile(dynamic=False)
        def called(x):
            return x

        assert never_called.__name__ == "never_called"
        with pytest.raises(UntestableError, match=r"torch\.compile"):
            called(torch.ones(3, device=session.device))
        with pytest.raises(UntestableError, match=r"torch\.compile"):
            torch.compile(torch.nn.Linear(4, 4))


def test_a_target_that_ignores_the_device_is_refused(simulate):
    session = simulate()
    refused = pytest.raises(UntestableError, match=r"nothing on the simulated device; build model and data on")
    with session, refused, session.iteration(0):
        torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()


def test_replicas_that_compare_data_are_refused(simulate, world):
    session = simulate()
    with session:
        model = torch.nn.Linear(4, 4, device=session.device)
        with pytest.raises(UntestableError, match="DistributedDataParallel"):
            torch.nn.parallel.DistributedDataParallel(model)


def test_a_python_function_runs_backward_on_the_stream_of_its_forward(simulate, story):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].exp()

    session = simulate()
    with session, session.iteration(0):
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        side = torch.sim.Stream()
        with torch.sim.stream(side):
            y = Exp.apply(x)
        y.sum().backward()
    trace = session.measurement().trace
    indices = [i for i in story(session.measurement()).indices("backward") if trace.size[i] == 64 * 64 * 4]
    assert {int(trace.stream[i]) for i in indices} == {side.stream_id}


def test_the_report_says_where_stand_ins_were_given(simulate):
    session = simulate()
    with session, session.iteration(0):
        torch.ones(3, device=session.device).sum().item()
    (note,) = session.measurement().notes
    assert "read data from the device 1 times, first at" in note
    assert "test_dispatch.py" in note
