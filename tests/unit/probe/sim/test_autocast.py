"""Autocast on the simulated device casts what CUDA casts, and keeps cast weights as CUDA keeps them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from oomscope.probe.sim import autocast

# Interpolation and recurrent cells are no part of a transformer; cuDNN's and deprecated names of convolution are never
# asked for on this device; the norms give their result a type of its own.
LEFT_OUT = {
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "_convolution.deprecated",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "frobenius_norm.dim",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "binary_cross_entropy",
    "linalg_matrix_sqrth",
    "_cudnn_rnn",
}


def test_the_lists_are_those_of_the_installed_torch():
    cuda = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    ours = {
        name
        for names in (autocast.LOWER_PRECISION, autocast.FP32, autocast.FP32_RESULT, autocast.PROMOTE)
        for name in names.split()
    }
    assert cuda - ours == LEFT_OUT
    assert ours <= cuda


def test_matrix_products_run_low_and_reductions_high(simulate):
    session = simulate()
    with session:
        module = torch.nn.Linear(64, 64, device=session.device)
        x = torch.randn(8, 64, device=session.device)
        with torch.autocast("sim", dtype=torch.bfloat16):
            y = module(x)
            assert y.dtype is torch.bfloat16
            assert functional.layer_norm(y, (64,)).dtype is torch.float32
            assert functional.softmax(y, -1).dtype is torch.float32
            assert torch.addcmul(y, y, x).dtype is torch.float32
            loss = functional.cross_entropy(y, torch.zeros(8, dtype=torch.long, device=session.device))
        assert loss.dtype is torch.float32
        loss.backward()
        assert module.weight.grad.dtype is torch.float32
    with session_without_autocast(simulate) as plain:
        assert torch.nn.Linear(4, 4, device=plain.device)(torch.randn(2, 4, device=plain.device)).dtype is torch.float32


def session_without_autocast(simulate):
    return simulate()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_weight_is_cast_once_and_kept_until_autocast_ends(simulate, enabled):
    session = simulate()
    low = 64 * 64 * 2
    with session:
        module = torch.nn.Linear(64, 64, device=session.device, bias=False)
        x = torch.randn(8, 64, device=session.device, dtype=torch.bfloat16)
        with torch.autocast("sim", dtype=torch.bfloat16, cache_enabled=enabled):
            module(x)
            held = torch.sim.memory_allocated()
            module(x)
            assert torch.sim.memory_allocated() == held
        assert held - torch.sim.memory_allocated() == (low if enabled else 0)
