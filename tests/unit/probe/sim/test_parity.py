"""The sequence of allocations is CUDA's, not that of the fallback for unknown devices (docs/design/cuda-parity.md)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from oomscope.snapshot.trace import Action
from oomscope.units import KiB

SQUARE = 64 * 64 * 4


def layer(device: torch.device) -> tuple[torch.nn.Linear, torch.Tensor]:
    module = torch.nn.Linear(64, 64, device=device)
    module(torch.randn(8, 64, device=device)).sum().backward()
    return module, module.weight


def test_adam_takes_the_foreach_path(simulate, story):
    """States for both parameters, then one list of square roots: never a temporary a parameter."""
    session = simulate()
    with session:
        module, _ = layer(session.device)
        optimizer = torch.optim.AdamW(module.parameters())
        before = len(story(session_so_far(session)).allocations())
        optimizer.step()
        first = story(session_so_far(session)).allocations()[before:]
        before += len(first)
        optimizer.step()
        second = story(session_so_far(session)).allocations()[before:]
    assert first == [SQUARE, SQUARE, 256, 256, SQUARE, 256]
    assert second == [SQUARE, 256]


def test_fused_adam_allocates_nothing_once_its_states_are_there(simulate, story):
    session = simulate()
    with session:
        module, _ = layer(session.device)
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)
        optimizer.step()
        before = len(story(session_so_far(session)).allocations())
        optimizer.step()
        assert story(session_so_far(session)).allocations()[before:] == []


def test_gradient_clipping_takes_all_norms_in_one_buffer(simulate, story):
    session = simulate()
    with session:
        module, _ = layer(session.device)
        before = len(story(session_so_far(session)).allocations())
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        found = story(session_so_far(session)).allocations()[before:]
    norms, stacked, total = found[:3]
    assert (norms, stacked, total) == (8, 8, 4)


def session_so_far(session):
    class SoFar:
        trace = session.memory.builder.build()

    return SoFar


@pytest.mark.parametrize(
    ("dtype", "groups", "mask", "kernel"),
    [
        (torch.bfloat16, 4, None, "Flash"),
        (torch.bfloat16, 2, None, "Flash"),
        (torch.bfloat16, 4, "mask", "Efficient"),
        (torch.float32, 4, None, "Efficient"),
        (torch.float32, 2, None, None),
    ],
)
def test_attention_is_chosen_as_on_cuda(simulate, dtype, groups, mask, kernel):
    session = simulate()
    with session:
        q = torch.randn(2, 4, 128, 64, device=session.device, dtype=dtype, requires_grad=True)
        k = torch.randn(2, groups, 128, 64, device=session.device, dtype=dtype, requires_grad=True)
        bias = torch.zeros(128, 128, device=session.device, dtype=dtype) if mask else None
        out = functional.scaled_dot_product_attention(q, k, k, attn_mask=bias, enable_gqa=groups != 4)
        assert out.shape == q.shape
        name = out.grad_fn.name()
        out.sum().backward()
        assert k.grad.shape == k.shape
    if kernel:
        assert f"ScaledDotProduct{kernel}Attention" in name
    else:
        assert "ScaledDotProduct" not in name


def test_the_users_choice_of_attention_is_heeded(simulate):
    session = simulate()
    with session, sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        q = torch.randn(2, 4, 128, 64, device=session.device, dtype=torch.bfloat16, requires_grad=True)
        assert "Efficient" in functional.scaled_dot_product_attention(q, q, q).grad_fn.name()


def test_flash_attention_keeps_output_and_logsumexp_only(simulate, story):
    session = simulate()
    with session:
        q, k, v = (
            torch.randn(2, 4, 128, 64, device=session.device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        before = len(story(session_so_far(session)).allocations())
        functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found = story(session_so_far(session)).allocations()[before:]
    output, logsumexp, *random_state = found
    assert output == 2 * 4 * 128 * 64 * 2
    assert logsumexp == 2 * 4 * 128 * 4
    assert sum(random_state) == 24


def test_rms_norm_is_one_kernel_that_saves_its_input_and_one_number_a_row(simulate, story):
    session = simulate()
    with session:
        norm = torch.nn.RMSNorm(64, device=session.device, dtype=torch.bfloat16)
        x = torch.randn(8, 64, device=session.device, dtype=torch.bfloat16, requires_grad=True)
        before = len(story(session_so_far(session)).allocations())
        y = norm(x)
        assert story(session_so_far(session)).allocations()[before:] == [8 * 64 * 2, 8 * 4]
        y.sum().backward()
        assert norm.weight.grad.shape == (64,)


def test_gradients_of_several_uses_are_summed_in_place(simulate, story):
    """Four uses: three sums on the engine's own buffer, none with a block of its own."""
    session = simulate()
    with session:
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        y = x * 1
        loss = (y.sin() + y.cos() + y.exp() + y.tanh()).sum()
        before = len(story(session_so_far(session)).allocations())
        loss.backward()
        found = story(session_so_far(session)).allocations()[before:]
    blocks = found.count(SQUARE)
    # tanh: 1, exp: 1, cos: sin, neg, mul = 3, sin: cos, mul = 2, mul by 1: 1
    assert blocks == 8


def test_the_gradient_of_a_residual_is_summed_in_place_once_its_branch_is_done(simulate, story):
    session = simulate()
    with session:
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        y = x * 1
        loss = ((y + y.sin()) * 2).sum()
        before = len(story(session_so_far(session)).allocations())
        loss.backward()
        found = story(session_so_far(session)).allocations()[before:]
    # mul by 2: 1, sin: cos, mul = 2, mul by 1: 1
    assert found.count(SQUARE) == 4


def test_a_gradient_that_is_an_expanded_scalar_is_not_summed_in_place(simulate, story):
    session = simulate()
    with session:
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        y = x * 1
        loss = (y + y.sin()).sum()
        before = len(story(session_so_far(session)).allocations())
        loss.backward()
        found = story(session_so_far(session)).allocations()[before:]
    # sin: cos, mul = 2, the sum: 1, mul by 1: 1
    assert found.count(SQUARE) == 4


def test_a_second_backward_adds_to_the_gradient_in_place(simulate, story):
    session = simulate()
    with session:
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        (x * 2).sum().backward()
        held = torch.sim.memory_allocated()
        (x * 2).sum().backward()
        assert torch.sim.memory_allocated() == held


def test_default_attention_memory_is_linear_in_the_sequence(simulate):
    def peak(length: int) -> int:
        session = simulate()
        with session:
            q = torch.randn(1, 2, length, 64, device=session.device, dtype=torch.bfloat16, requires_grad=True)
            functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        return session.measurement().stats.requested_bytes_peak

    assert peak(8192) / peak(1024) == pytest.approx(8, rel=0.01)


def test_layer_norm_keeps_two_numbers_a_row(simulate, story):
    session = simulate()
    with session:
        x = torch.randn(256, KiB, device=session.device, requires_grad=True)
        before = len(story(session_so_far(session)).allocations())
        functional.layer_norm(x, (KiB,))
        found = story(session_so_far(session)).allocations()[before:]
    assert found == [256 * KiB * 4, 256 * 4, 256 * 4]
    assert Action.OOM not in {Action(int(a)) for a in session.measurement().trace.action}


@pytest.mark.parametrize(("function", "blocks"), [(functional.silu, 1), (functional.mish, 1)])
def test_activations_with_a_kernel_of_their_own_have_one_block_of_backward(simulate, story, function, blocks):
    session = simulate()
    with session:
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        loss = function(x * 1).sum()
        before = len(story(session_so_far(session)).allocations())
        loss.backward()
        found = story(session_so_far(session)).allocations()[before:]
    assert found.count(SQUARE) == blocks + 1  # and one for the multiplication by 1


@pytest.mark.parametrize(
    "use",
    [
        lambda x, index: x[index],
        lambda x, index: x.index_select(0, index),
        lambda x, index: x.gather(0, index[:, None].expand(-1, 64)),
    ],
    ids=["index", "index_select", "gather"],
)
def test_gradients_are_scattered_into_fresh_zeros_in_place(simulate, story, use):
    session = simulate()
    with session:
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        index = torch.zeros(8, dtype=torch.long, device=session.device)
        loss = use(x * 1, index).sum()
        before = len(story(session_so_far(session)).allocations())
        loss.backward()
        found = story(session_so_far(session)).allocations()[before:]
    assert found.count(SQUARE) == 2  # the zeros, and the multiplication by 1


def test_flash_attention_needs_a_card_that_has_it(simulate):
    from oomscope.virtual.cards import find_card

    session = simulate(gpu=find_card("t4"))
    with session:
        q = torch.randn(2, 4, 128, 64, device=session.device, dtype=torch.float16, requires_grad=True)
        assert "Efficient" in functional.scaled_dot_product_attention(q, q, q).grad_fn.name()


def test_a_model_may_be_converted_more_than_once(simulate):
    session = simulate()
    with session:
        model = torch.nn.Linear(64, 64).to(session.device).to(torch.bfloat16).to(session.device).half()
        assert model.weight.dtype is torch.float16
        assert torch.sim.memory_allocated() == 64 * 64 * 2 + 512
        model.cpu()
        assert torch.sim.memory_allocated() == 0


def test_a_grad_scaler_lets_the_optimizer_step(simulate):
    session = simulate()
    with session:
        model = torch.nn.Linear(64, 64, device=session.device)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("sim")
        with torch.autocast("sim", dtype=torch.float16):
            loss = model(torch.randn(8, 64, device=session.device)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert len(optimizer.state) == 2
