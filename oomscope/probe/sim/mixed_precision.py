"""Mixed precision that a program asks for by the name ``cuda`` is that of the simulated device.

``torch.autocast("cuda")`` moves nothing to a device, it only says for which one casts are wanted; here that is the
device that stands for CUDA. Without a GPU torch would switch autocast and ``GradScaler`` off without a word instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.amp import autocast_mode

from oomscope.probe.sim.backend import DEVICE_TYPE
from oomscope.probe.sim.replace import replaced

_CUDA: Final = "cuda"


@contextmanager
def installed() -> Iterator[None]:
    """Let autocast, its questions and ``GradScaler`` mean the simulated device by ``cuda`` inside the block."""
    with (
        replaced(torch.autocast, __init__=_initialised(torch.autocast.__init__, "device_type")),
        replaced(torch.amp.GradScaler, __init__=_initialised(torch.amp.GradScaler.__init__, "device")),
        replaced(
            torch,
            is_autocast_enabled=_asked(torch.is_autocast_enabled),
            get_autocast_dtype=_asked(torch.get_autocast_dtype),
        ),
        replaced(autocast_mode, _cast=_cast_for(autocast_mode._cast)),
    ):
        yield


def _initialised(initialise: Callable[..., None], name: str) -> Callable[..., None]:
    """Return ``initialise`` of a class whose first argument is the device ``name``."""
    signature = inspect.signature(initialise)

    def translated(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        given.arguments[name] = _simulated(given.arguments[name])
        initialise(*given.args, **given.kwargs)

    return functools.update_wrapper(translated, initialise)


def _asked(question: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``question``, which is about CUDA where no device is named."""

    def translated(device_type: str = _CUDA) -> Any:
        return question(_simulated(device_type))

    return translated


def _cast_for(cast: Callable[[Any, str, torch.dtype], Any]) -> Callable[[Any, str, torch.dtype], Any]:
    """Return ``cast``, with which ``custom_fwd`` casts the arguments that lie on a kind of device."""

    def translated(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return cast(value, _simulated(device_type), dtype)

    return translated


def _simulated(device: Any) -> Any:
    return DEVICE_TYPE if isinstance(device, str) and device.partition(":")[0] == _CUDA else device
