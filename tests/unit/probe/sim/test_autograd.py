"""An out-of-memory error reaches user code, in forward and out of backward, and the process lives on."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from oomscope.units import MiB


def stack_of_layers(device: torch.device, depth: int = 4) -> torch.nn.Sequential:
    layers = [torch.nn.Linear(1024, 1024, device=device) for _ in range(depth)]
    return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))


def test_forward_raises_torchs_error_at_the_failing_line(simulate):
    session = simulate(limit_bytes=50 * MiB)
    with session, pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(100 * MiB, dtype=torch.uint8, device=session.device)
    message = str(caught.value)
    assert message.startswith(
        "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 50.00 MiB"
    )
    assert "is allocated by PyTorch" in message
    failure = session.measurement().oom
    assert failure is not None
    assert failure.requested_bytes == 100 * MiB
    assert failure.device_free_bytes == 50 * MiB
    assert failure.event is not None


def test_the_program_can_catch_it_and_go_on(simulate):
    session = simulate(limit_bytes=50 * MiB)
    with session:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 * MiB, dtype=torch.uint8, device=session.device)
        kept = torch.empty(10 * MiB, dtype=torch.uint8, device=session.device)
        assert torch.sim.memory_allocated() == 10 * MiB
        del kept
        assert torch.sim.memory_allocated() == 0
    assert session.measurement().stats.num_ooms == 1


@pytest.mark.parametrize("reentrant", [None, True, False], ids=["plain", "reentrant", "non-reentrant"])
@pytest.mark.parametrize("limit", range(24, 84, 4))
def test_at_every_limit_backward_either_fits_or_raises(simulate, story, reentrant, limit):
    """The limits cut through forward, recomputation and every node of backward."""
    session = simulate(limit_bytes=limit * MiB)
    with session:
        model = None
        try:
            model = stack_of_layers(session.device)
            x = torch.randn(1024, 1024, device=session.device, requires_grad=True)
            y = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
            y.sum().backward()
        except torch.OutOfMemoryError:
            failed = True
        else:
            failed = False
        x = y = model = None
        assert torch.sim.memory_allocated() == 0
        again = torch.ones(3, device=session.device, requires_grad=True)
        (again * 2).sum().backward()
        assert again.grad is not None
    assert failed == (session.measurement().oom is not None)
    assert session.measurement().stats.num_ooms == int(failed)


def test_backward_stops_at_the_operation_that_failed(simulate, story):
    session = simulate(limit_bytes=36 * MiB)
    with session:
        first, last = (
            torch.nn.Linear(1024, 1024, device=session.device),
            torch.nn.Linear(1024, 1024, device=session.device),
        )
        x = torch.randn(1024, 1024, device=session.device)
        loss = last(first(x)).sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        assert first.weight.grad is None
    oom = session.measurement().oom
    assert oom is not None
    assert oom.moment.phase == "init"  # outside an iteration nothing tells phases


def test_an_error_in_a_tensor_hook_leaves_backward(simulate):
    session = simulate(limit_bytes=50 * MiB)
    with session:
        x = torch.randn(4, device=session.device, requires_grad=True)
        x.register_hook(lambda grad: torch.empty(100 * MiB, dtype=torch.uint8, device=session.device))
        with pytest.raises(torch.OutOfMemoryError):
            (x * 2).sum().backward()


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_an_error_in_a_module_hook_leaves_backward(simulate, kind):
    session = simulate(limit_bytes=50 * MiB)
    with session:
        model = torch.nn.Linear(4, 4, device=session.device)
        hook = lambda *_: torch.empty(100 * MiB, dtype=torch.uint8, device=session.device)  # noqa: E731
        getattr(model, kind)(hook)
        x = torch.randn(2, 4, device=session.device, requires_grad=True)
        with pytest.raises(torch.OutOfMemoryError):
            model(x).sum().backward()


def test_any_error_of_user_code_inside_backward_comes_out_as_itself(simulate):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("user code")

    session = simulate()
    with session:
        x = torch.randn(4, device=session.device, requires_grad=True)
        with pytest.raises(ValueError, match="user code"):
            Broken.apply(x).sum().backward()
        x.register_post_accumulate_grad_hook(lambda parameter: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            (x * 2).sum().backward()


def test_hooks_and_engine_are_torchs_own_again_afterwards(simulate):
    before = (torch.autograd._engine_run_backward, torch.Tensor.register_hook, torch.compile, torch.Tensor.pin_memory)
    with simulate():
        assert torch.autograd._engine_run_backward is not before[0]
    after = (torch.autograd._engine_run_backward, torch.Tensor.register_hook, torch.compile, torch.Tensor.pin_memory)
    assert after == before
    x = torch.ones(2, requires_grad=True)
    functional.relu(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(2))
