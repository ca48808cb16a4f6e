"""What is measured: a :class:`Target` runs one training iteration at a call, on the device of its :class:`Context`.

A harness is a Python file outside the repository under test with ``setup(ctx: Context) -> Target``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Context:
    """The context of a harness: the device, and the settings of the run."""

    device: torch.device
    """Device for the model and the data: ``cuda:0``."""
    repo: Path
    """The checkout under test; it is first on ``sys.path``."""
    rank: int = 0
    world_size: int = 1
    seed: int = 1234
    limit_bytes: int | None = None
    """Bytes of the card in all, where a limit was given."""


@dataclass(frozen=True)
class Target:
    """The target that a harness returns."""

    step: Callable[[], Any]
    """Runs one iteration: forward, backward, optimizer step. Its return value is ignored."""
    model: torch.nn.Module | list[torch.nn.Module] | None = None
    """Names parameters, gradients and modules in reports."""
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None
    """Identifies optimizer states in reports."""
