"""Bytes a parameter, agreement with torch's own optimizers, clipping, and masters that follow the parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from oomscope.config.schema import Config, ModelConfig, OptimizerConfig, PrecisionConfig
from oomscope.model.base.observer import NullObserver
from oomscope.model.distributed.param_and_grad_buffer import GradBuffer, build_grad_buffers
from oomscope.model.optimizer.mixed_precision import MixedPrecisionOptimizer
from oomscope.model.parallel.parallel_state import ParallelState, Place

PARAMS = 64 * 128 * 32
"""A multiple of all alignments, so that padding adds nothing unless a test wants it."""


def make_config(*, optimizer: dict[str, Any] | None = None, **precision: bool) -> Config:
    return Config(
        model=ModelConfig(num_layers=1, hidden_size=8, num_attention_heads=2),
        optimizer=OptimizerConfig(**(optimizer or {})),
        precision=PrecisionConfig(**precision),
    )


class Weights(nn.Module):
    def __init__(self, numels: list[int], dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__()
        values = (
            torch.zeros(numel, 1, device=device) if device == "meta" else torch.randn(numel, 1) for numel in numels
        )
        self.weights = nn.ParameterList(nn.Parameter(value.to(dtype)) for value in values)


def build(
    config: Config, weights: Weights, replicas: int = 1, rank: int = 0
) -> tuple[list[GradBuffer], MixedPrecisionOptimizer]:
    state = ParallelState(dp_cp=Place(rank, replicas), intra_dp_cp=Place(rank, replicas))
    buffers = build_grad_buffers([weights], config, state, NullObserver())
    return buffers, MixedPrecisionOptimizer(config, state, buffers, NullObserver())


def requested_bytes(weights: Weights, buffers: list[GradBuffer], optimizer: MixedPrecisionOptimizer) -> int:
    tensors = [*weights.parameters(), *(buffer.grads for buffer in buffers)]
    tensors += [weight.master for weight in optimizer.weights]
    tensors += [weight.master.grad for weight in optimizer.weights if weight.master.grad is not None]
    tensors += [value for state in optimizer.inner.state.values() for value in state.values()]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


@pytest.mark.parametrize(
    ("precision", "dtype", "distributed", "replicas", "expected"),
    [
        ({}, torch.bfloat16, False, 1, 18),
        ({}, torch.bfloat16, False, 8, 18),
        ({}, torch.bfloat16, True, 1, 18),
        ({}, torch.bfloat16, True, 8, 6 + 12 / 8),
        ({"bf16": False}, torch.float32, False, 1, 16),
        ({"bf16": False}, torch.float32, True, 8, 8 + 8 / 8),
        ({"grad_reduce_in_fp32": False}, torch.bfloat16, False, 1, 16 + 4),
        ({"grad_reduce_in_fp32": False}, torch.bfloat16, True, 8, 4 + 12 / 8 + 4 / 8),
    ],
)
def test_bytes_a_parameter(
    precision: dict[str, bool], dtype: torch.dtype, distributed: bool, replicas: int, expected: float
) -> None:
    config = make_config(optimizer={"use_distributed_optimizer": distributed}, **precision)
    weights = Weights([PARAMS], dtype, device="meta")
    buffers, optimizer = build(config, weights, replicas)
    before = requested_bytes(weights, buffers, optimizer)
    optimizer.step()
    after = requested_bytes(weights, buffers, optimizer)
    assert after == expected * PARAMS
    moments = 8 / (replicas if distributed else 1)
    grads_in_fp32 = 4 / (replicas if distributed else 1) if "grad_reduce_in_fp32" in precision else 0
    assert after - before == (moments + grads_in_fp32) * PARAMS, "moments are made in the first step"


def set_grads(weights: Weights, value: float = 1.0) -> None:
    for index, param in enumerate(weights.parameters()):
        param.main_grad.fill_(value * (index + 1))


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("distributed", [False, True])
def test_masters_are_updated_in_fp32_and_copied_back(kind: str, distributed: bool) -> None:
    torch.manual_seed(0)
    config = make_config(
        optimizer={"optimizer": kind, "lr": 1e-4, "use_distributed_optimizer": distributed, "clip_grad": 0.0}
    )
    weights = Weights([64, 10], torch.bfloat16)
    start = [param.detach().clone() for param in weights.parameters()]
    _, optimizer = build(config, weights)
    for _ in range(3):
        optimizer.zero_grad()
        set_grads(weights)
        assert optimizer.step() is None
    masters = {weight.value.data_ptr(): weight.master for weight in optimizer.weights}
    for param, before in zip(weights.parameters(), start, strict=True):
        master = masters[param.data_ptr()].view(param.shape)
        assert master.dtype == torch.float32
        assert torch.equal(param, master.bfloat16())
        assert not torch.equal(master, before.float()), "steps too small for bf16 must not be lost"
