"""What cannot be simulated is refused by name, never measured as something else.

Hard-coded CUDA, ``torch.compile``, kernels without a shape rule, replicas that compare data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel

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


def refuse_compile(model: Any = None, *_: Any, **options: Any) -> Callable[..., Any]:
    """Stand in for ``torch.compile``: a function may be made ready, as decorators do on import, but not be called.

    Raises:
        UntestableError: ``model`` is a module, which is made ready only to be called.
    """
    if model is None:
        return functools.partial(refuse_compile, **options)

    def refused(*_: Any, **__: Any) -> NoReturn:
        _refuse("the target uses torch.compile", "run it eagerly, or probe with --backend cuda")

    if isinstance(model, torch.nn.Module):
        refused()
    return functools.update_wrapper(refused, model)


def unsupported(op: object, error: Exception) -> UntestableError:
    """Return the error for an operation that has no rule for shapes without data."""
    reason = " ".join(str(error).split("\n", 1)[0].split())[:200]
    return UntestableError(
        f"operation {op} cannot be simulated ({type(error).__name__}: {reason})", remedy="probe with --backend cuda"
    )


@contextmanager
def installed() -> Iterator[None]:
    """Refuse CUDA by name, ``torch.compile`` and replicas with a reducer inside the block."""
    with (
        replaced(torch.cuda, _lazy_init=refuse_cuda),
        replaced(torch, compile=refuse_compile),
        replaced(DistributedDataParallel, __init__=_in_a_world_of_one(DistributedDataParallel.__init__)),
    ):
        yield


def _in_a_world_of_one(initialise: Callable[..., None]) -> Callable[..., None]:
    """Return ``initialise`` for one rank; with more, the reducer compares data that no other rank sends."""

    def guarded(owner: object, *args: Any, **kwargs: Any) -> None:
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_world_size() > 1:
            _refuse("the target uses DistributedDataParallel", "hand over the bare module, or use fully_shard")
        initialise(owner, *args, **kwargs)

    return guarded
