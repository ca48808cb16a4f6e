"""``torch.nn.init.trunc_normal_`` on a virtual card: as many rounds as on a real one, in all likelihood.

It draws again what lies outside its bounds, and asks the card after each round whether anything does. A card that
computes nothing would say never, or for ever. A round allocates two tensors of the size of its argument, so how many
there are matters; it follows from the bounds. Versions of torch that draw once ask nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

from oomscope import virtual

_NAME: Final = "_no_grad_trunc_normal_"
_LEAST_NORMAL: Final = 0.3
"""Of the normal distribution within the bounds, from which torch draws from it; below that it draws uniformly."""


@contextmanager
def redrawn_as_expected() -> Iterator[None]:
    """Answer the question after each round while the block runs on a virtual card."""
    draw = getattr(init, _NAME, None)
    if not virtual.is_loaded() or draw is None:
        yield
        return

    @functools.wraps(draw)
    def drawn(tensor: torch.Tensor, mean: float, std: float, a: float, b: float, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_cuda:
            return draw(tensor, mean, std, a, b, *args, **kwargs)
        with _Rounds(rounds_of(tensor.numel(), mean, std, a, b)):
            return draw(tensor, mean, std, a, b, *args, **kwargs)

    setattr(init, _NAME, drawn)
    try:
        yield
    finally:
        setattr(init, _NAME, draw)


class _Rounds(TorchFunctionMode):
    """Lets ``any`` be true as often as numbers are drawn again; it runs as it is, with what it allocates."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._answers = itertools.chain(itertools.repeat(True, rounds), itertools.repeat(False))

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_any = getattr(func, "__name__", "") == "any"
        return torch.tensor(next(self._answers), device="cpu") if is_any else result


def rounds_of(numbers: int, mean: float, std: float, a: float, b: float) -> int:
    """Return after how many rounds fewer than half a number is expected outside; 0 where none ever is.

    Each round accepts the same share: of normal numbers those within the bounds, of uniform ones the mean density
    over the highest.
    """
    within = _normal((b - mean) / std) - _normal((a - mean) / std)
    accepted = within
    if within <= _LEAST_NORMAL:
        highest = math.exp(-0.5 * ((min(max(mean, a), b) - mean) / std) ** 2)
        accepted = within * std * math.sqrt(2 * math.pi) / ((b - a) * highest) if b > a and highest else 1.0
    rejected = max(1.0 - accepted, 0.0)
    if numbers * rejected < 0.5:
        return 0
    return math.ceil(math.log(0.5 / numbers) / math.log(rejected)) - 1 if rejected < 1.0 else 1


def _normal(x: float) -> float:
    """Return the share of a standard normal distribution below ``x``."""
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0
