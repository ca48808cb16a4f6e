"""What scripts of tests share that run PyTorch on the card."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

import torch

from oomscope.virtual import library

MiB = 1 << 20


def say(value: object) -> None:
    """Give a value to the test."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def leave() -> NoReturn:
    """End here: autograd's thread may abort an interpreter that ends right after ``backward()``."""
    os._exit(0)


def state() -> library.CardState:
    return library.state()


def unknown(tensor: torch.Tensor) -> int:
    """Read; return how many of the bytes the card did not hold."""
    before = state().unknown_read_bytes
    tensor.cpu()
    return state().unknown_read_bytes - before


def joined(x: torch.Tensor) -> torch.Tensor:
    """For TorchScript, which reads its source."""
    return torch.cat([x, torch.arange(3, device=x.device)]) + torch.ones(1, dtype=torch.int64, device=x.device)
