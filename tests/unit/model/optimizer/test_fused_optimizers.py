"""The fused optimizers are torch's, and Adam with few-bit states trains as they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oomscope.config.schema import Config, OptimizerConfig
from oomscope.model.optimizer.fused_optimizers import FusedAdam, FusedSGD
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.trainer import Trainer


@pytest.mark.parametrize("kind", ["adam", "sgd", "sgd with momentum"])
def test_a_fused_optimizer_is_torchs(kind: str) -> None:
    torch.manual_seed(0)
    mine = [torch.randn(5), torch.randn(3, 4), torch.ones(3)]
    theirs = [value.clone() for value in mine]
    config = OptimizerConfig(lr=0.1, adam_beta1=0.8, adam_beta2=0.9, adam_eps=1e-3, weight_decay=0.05)
    if kind == "adam":
        ours: Any = FusedAdam(mine, config)
        reference: Any = torch.optim.AdamW(theirs, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.05)
    else:
        momentum = 0.9 if "momentum" in kind else 0.0
        ours = FusedSGD([{"params": mine, "weight_decay": 0.05}], lr=0.1, momentum=momentum)
        reference = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, weight_decay=0.05)
    for _ in range(4):
        for value, copy in zip(mine[:2], theirs[:2], strict=True):
            value.grad = torch.randn_like(value)
            copy.grad = value.grad.clone()
        ours.step()
        reference.step()
    for value, copy in zip(mine, theirs, strict=True):
        torch.testing.assert_close(value, copy, rtol=1e-6, atol=1e-6)
    assert mine[2] not in ours.state, "without a gradient there is no state"


def aware_config(*, aware: bool = True, **optimizer: Any) -> Config:
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
    }
    return Config.model_validate(sections)


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
