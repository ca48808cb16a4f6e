"""Loss scaling: constant and dynamic factors, and steps that are left out."""

from __future__ import annotations

from typing import Any

import torch

from oomscope.config.schema import Config
from oomscope.model.optimizer.mixed_precision import GradScaler, build_grad_scaler
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.trainer import Trainer

CPU = torch.device("cpu")
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def scaled_config(precision: dict[str, Any] | None = None, **optimizer: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 64, **NO_DROPOUT},
            "data": {"seq_length": 8},
            "optimizer": {"lr": 0.01, **optimizer},
            "precision": precision or {"fp16": True, "bf16": False},
        }
    )


def test_gradients_are_divided_in_place_and_infinities_found() -> None:
    scaler = GradScaler(scaled_config(loss_scale=4.0), CPU)
    grads = [torch.tensor([4.0, 8.0]), torch.tensor([2.0])]
    assert scaler.unscale(grads, [])
    assert [grad.tolist() for grad in grads] == [[1.0, 2.0], [0.5]]
    assert not scaler.unscale([torch.tensor([1.0, float("inf")])], [])
    assert scaler.unscale([torch.tensor([1.0])], []), "the flag is cleared"
    assert scaler.scale_loss(torch.ones(())) == 4, "a given factor is constant"
    assert build_grad_scaler(scaled_config({"bf16": True}, loss_scale=8.0), CPU) is not None
    assert build_grad_scaler(scaled_config({"bf16": True}), CPU) is None


def test_the_dynamic_factor_follows_megatron_cores_rules() -> None:
    scaler = GradScaler(
        scaled_config(initial_loss_scale=16.0, min_loss_scale=4.0, loss_scale_window=3, hysteresis=2), CPU
    )
    assert sum(tensor.nbytes for tensor in scaler.tensors) == 5 * 4
    scales = []
    for is_finite in (False, False, False, False, True, True, True, False, True, True, True):
        scaler.update(is_finite=is_finite)
        scales.append(scaler.scale_loss(torch.ones(())).item())
    assert scales == [16, 8, 4, 4, 4, 4, 8, 8, 8, 8, 16]


def test_fp16_trains_and_leaves_out_steps_that_overflow() -> None:
    trainer = Trainer(scaled_config(initial_loss_scale=2.0**22, hysteresis=1), ParallelState(), device=CPU)
    trainer.setup()
    before = {name: value.clone() for name, value in trainer.model[0].state_dict().items()}
    trainer.step(0)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model[0].state_dict().items())
    assert not trainer.optimizer.state, "moments are made by the first step that is taken"
    for iteration in range(1, 9):
        trainer.step(iteration)
    assert all(not torch.equal(value, before[name]) for name, value in trainer.model[0].state_dict().items())
    assert all(value.isfinite().all() for value in trainer.model[0].state_dict().values())
