"""Each non-linearity in its three forms: as autograd has it, into memory that is there, differentiated in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch.nn import functional

from oomscope.model.layers.mlp import Activation, activate, activate_into, differentiate_in_place, gated

PLAIN: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
    "relu": functional.relu,
    "squared_relu": lambda x: functional.relu(x) ** 2,
}


def differentiated(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = run(x)
    (grad,) = torch.autograd.grad(out, x, torch.arange(1.0, out.numel() + 1).view_as(out))
    return out, grad


@pytest.mark.parametrize("activation", get_args(Activation))
def test_all_forms_agree(activation: Activation) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    expected = differentiated(PLAIN[activation], x)
    torch.testing.assert_close(differentiated(lambda t: activate(t, activation), x), expected)
    into, grad = torch.empty_like(x), torch.arange(1.0, x.numel() + 1).view_as(x)
    activate_into(into, x, activation)
    differentiate_in_place(grad, x, activation)
    torch.testing.assert_close((into, grad), (expected[0].detach(), expected[1]))


@pytest.mark.parametrize("activation", get_args(Activation))
def test_a_gate_is_the_product_of_its_halves(activation: Activation) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)

    def product(t: torch.Tensor) -> torch.Tensor:
        gate, up = t.chunk(2, dim=-1)
        return PLAIN[activation](gate) * up

    torch.testing.assert_close(differentiated(lambda t: gated(t, activation), x), differentiated(product, x))
