"""What a training step tells its observer, and its data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from oomscope.config.schema import Config
from oomscope.model.base.observer import NullObserver
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.trainer import Batch, Trainer, random_batch

CPU = torch.device("cpu")
MODEL = {
    "num_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "make_vocab_size_divisible_by": 1,
}


def make_config(**sections: dict[str, Any]) -> Config:
    document: dict[str, dict[str, Any]] = {
        "model": dict(MODEL),
        "data": {"seq_length": 8, "micro_batch_size": 2, "num_microbatches": 2},
        "precision": {"bf16": False},
    }
    for section, keys in sections.items():
        document[section] = {**document.get(section, {}), **keys}
    return Config.model_validate(document)


def make_trainer(config: Config, **options: Any) -> Trainer:
    trainer = Trainer(config, ParallelState(), device=CPU, **options)
    trainer.setup()
    return trainer


class Log(NullObserver):
    """Keeps what is told: phases as they begin, bytes by role and phase."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None, int | None]] = []
        self.roles: Counter[tuple[str, str]] = Counter()
        self._inside: list[str] = []

    @contextmanager
    def phase(self, phase: str, *, iteration: int | None = None, microbatch: int | None = None) -> Iterator[None]:  # type: ignore[override]
        self.phases.append((phase, iteration, microbatch))
        self._inside.append(phase)
        yield
        self._inside.pop()

    def role(self, role: str, tensors: Iterable[torch.Tensor]) -> None:
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        self.roles[role, self._inside[-1]] += sum(storages.values())


def test_phases_come_in_the_order_of_training() -> None:
    log = Log()
    make_trainer(make_config(), observer=log).step(5)
    seen = list(dict.fromkeys(log.phases))
    assert seen[0] == ("init", None, None)
    assert [phase for phase in seen if phase[0] in {"forward", "backward", "optimizer"}] == [
        ("forward", 5, 0), ("backward", 5, 0), ("forward", 5, 1), ("backward", 5, 1), ("backward", 5, None),
        ("optimizer", 5, None),
    ]  # fmt: skip
    assert log.phases[log.phases.index(("forward", 5, 0)) + 1][0] == "loss"


def test_roles_cover_what_stays() -> None:
    log = Log()
    trainer = make_trainer(make_config(precision={"bf16": True}, model={"attention_backend": "unfused"}), observer=log)
    params = sum(param.numel() for param in trainer.model[0].parameters())
    assert log.roles["parameter", "init"] == 2 * params
    assert log.roles["main_gradient", "init"] == 4 * params
    assert log.roles["optimizer_state", "init"] == 4 * params
    trainer.step(0)
    assert log.roles["optimizer_state", "optimizer"] == 8 * params + 2 * 4, "moments and two step counts"
    assert log.roles["gradient", "backward"] == 2 * 2 * params
    mask = 2 * 8 * 8
    assert log.roles["input", "forward"] == 2 * (2 * 2 * 8 * 8 + mask), "tokens, labels and mask of two microbatches"


def test_random_tokens_follow_from_seed_iteration_and_index() -> None:
    def batch(seed: int, iteration: int, index: int) -> Batch:
        return random_batch(make_config(probe={"seed": seed}), iteration, index)

    tokens, labels = batch(1, 2, 3)
    assert tokens.shape == labels.shape == (2, 8)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert torch.equal(batch(1, 2, 3).tokens, tokens)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)):
        assert not torch.equal(batch(*other).tokens, tokens)
