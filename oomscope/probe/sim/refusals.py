"""What cannot be simulated is refused by name: hard-coded CUDA, ``torch.compile``, kernels without a shape rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from oomscope.errors import UntestableError
from oomscope.probe.sim.replace import replaced


def _refuse(reason: str, remedy: str) -> NoReturn:
    raise UntestableError(reason, remedy=remedy)


def refuse_cuda(*_: Any, **__: Any) -> NoReturn:
    """Stand in for torch's CUDA initialisation.

    Raises:
        UntestableError: always.
    """
    _refuse("the target uses the device cuda by name", "take ctx.device, or probe with --backend cuda")


def refuse_compile(*_: Any, **__: Any) -> NoReturn:
    """Stand in for ``torch.compile``.

    Raises:
        UntestableError: always.
    """
    _refuse("the target uses torch.compile", "run it eagerly, or probe with --backend cuda")


def unsupported(op: object, error: Exception) -> UntestableError:
    """Return the error for an operation that has no rule for shapes without data."""
    reason = " ".join(str(error).split("\n", 1)[0].split())[:200]
    return UntestableError(
        f"operation {op} cannot be simulated ({type(error).__name__}: {reason})", remedy="probe with --backend cuda"
    )


@contextmanager
def installed() -> Iterator[None]:
    """Refuse CUDA and ``torch.compile`` inside the block."""
    with replaced(torch.cuda, _lazy_init=refuse_cuda), replaced(torch, compile=refuse_compile):
        yield
