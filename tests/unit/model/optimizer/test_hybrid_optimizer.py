"""The host's share of an optimizer: the same numbers, the bytes that it spares, and how far a fraction reaches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oomscope.config.schema import Config, ModelConfig, OptimizerConfig, PrecisionConfig
from oomscope.model.base.observer import NullObserver
from oomscope.model.distributed.param_and_grad_buffer import build_grad_buffers
from oomscope.model.optimizer.mixed_precision import MixedPrecisionOptimizer
from oomscope.model.parallel.parallel_state import ParallelState

SMALL = Config(model=ModelConfig(num_layers=1, hidden_size=8, num_attention_heads=2))


def trained(fraction: float, dtype: torch.dtype = torch.bfloat16, **settings: Any):
    """Return the weights after three steps, their optimizer, and the bytes that it keeps on the device."""
    offload = {"optimizer_cpu_offload": fraction > 0, "optimizer_offload_fraction": fraction, **settings}
    config = Config(
        model=SMALL.model,
        optimizer=OptimizerConfig(lr=0.01, weight_decay=0.1, **offload),
        precision=PrecisionConfig(bf16=dtype == torch.bfloat16),
    )
    torch.manual_seed(0)
    weights = torch.nn.ParameterList(
        torch.nn.Parameter(torch.randn(*shape).to(dtype)) for shape in ((64, 4), (256,), (128, 2), (256, 1))
    )
    buffers = build_grad_buffers([weights], config, ParallelState(), NullObserver())
    optimizer = MixedPrecisionOptimizer(config, ParallelState(), buffers, NullObserver())
    for _ in range(3):
        optimizer.zero_grad()
        for weight in weights:
            weight.main_grad.copy_(torch.randn(weight.shape))
        optimizer.step()
    return weights, optimizer


@pytest.mark.parametrize(
    ("fraction", "overlap", "dtype"),
    [(0.3, False, torch.bfloat16), (0.5, True, torch.bfloat16), (1.0, False, torch.float32)],
)
def test_the_numbers_are_those_of_the_device(fraction: float, overlap: bool, dtype: torch.dtype) -> None:
    expected, _ = trained(0.0, dtype)
    found, _ = trained(fraction, dtype, overlap_cpu_optimizer_d2h_h2d=overlap)
    for one, two in zip(expected, found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_the_precision_aware_optimizer_off_the_device_is_the_plain_one(fraction: float) -> None:
    """Neither narrow moments nor remainders of masters outlive the switch, whatever fraction moves."""
    narrow = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    aware = {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True, **narrow}
    expected, _ = trained(0.0)
    found, _ = trained(fraction, optimizer_cpu_offload=True, **aware)
    for one, two in zip(expected, found, strict=True):
        assert torch.equal(one, two)
