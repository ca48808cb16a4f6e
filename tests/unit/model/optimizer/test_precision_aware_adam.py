"""Adam with few-bit states: bytes a parameter, exact masters from remainders, and agreement with plain Adam."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.schema import Config
from oomscope.model.optimizer.precision_aware_adam import PrecisionAwareAdam, _joined, _split
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.trainer import Trainer


def aware_config(*, grads_in_fp32: bool = True, aware: bool = True, **optimizer: Any) -> Config:
    sections = {
        "model": {
            "num_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "vocab_size": 64,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "data": {"seq_length": 8},
        "optimizer": {
            "lr": 0.01,
            "use_distributed_optimizer": True,
            "use_precision_aware_optimizer": aware,
            **optimizer,
        },
        "precision": {"grad_reduce_in_fp32": grads_in_fp32},
    }
    return Config.model_validate(sections)


@pytest.mark.parametrize(
    ("optimizer", "grads_in_fp32", "expected"),
    [
        ({}, True, 2 + 4 + 4),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, True, 2 + 2 + 2),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "fp16"}, False, 2 + 2 + 2),
        ({"store_param_remainders": False}, True, 4 + 4 + 4),
    ],
)
def test_bytes_of_states_a_parameter(optimizer: dict[str, Any], grads_in_fp32: bool, expected: int) -> None:
    param = torch.zeros(1000, dtype=torch.bfloat16)
    adam = PrecisionAwareAdam([{"params": [param]}], aware_config(**optimizer).optimizer)
    adam.grads = {param: torch.ones(1000, dtype=torch.float32 if grads_in_fp32 else torch.bfloat16)}
    adam.step()
    assert sum(state.nbytes for state in adam.state[param].values()) == expected * 1000


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False), min_size=1))
def test_a_master_is_its_parameter_and_a_remainder(values: list[float]) -> None:
    masters = torch.tensor(values, dtype=torch.float32)
    param, remainder = masters.bfloat16(), torch.zeros(len(values), dtype=torch.int16)
    _split(masters, param, remainder)
    assert torch.equal(_joined(param, remainder).view(torch.int32), masters.view(torch.int32))
    assert torch.all((param.float() - masters).abs() <= (masters.bfloat16().float() - masters).abs())


@pytest.mark.parametrize("remainders", [True, False])
def test_trains_as_fused_adam_does(remainders: bool) -> None:
    plain, aware = trained(aware_config(aware=False)), trained(aware_config(store_param_remainders=remainders))
    for name, expected in plain.items():
        torch.testing.assert_close(aware[name], expected, rtol=1e-2, atol=1e-5)


def trained(config: Config) -> dict[str, torch.Tensor]:
    trainer = Trainer(config, ParallelState(), device=torch.device("cpu"))
    trainer.setup()
    for iteration in range(2):
        trainer.step(iteration)
    return dict(trainer.model[0].state_dict())


def test_gradients_are_read_as_they_are() -> None:
    trainer = Trainer(aware_config(grads_in_fp32=False), ParallelState(), device=torch.device("cpu"))
    trainer.setup()
    trainer.step(0)
    adam = trainer.optimizer
    assert isinstance(adam, PrecisionAwareAdam)
    main_grads = {param.main_grad.untyped_storage()._cdata for param in trainer.model[0].parameters()}
    assert {grad.untyped_storage()._cdata for grad in adam.grads.values()} == main_grads
