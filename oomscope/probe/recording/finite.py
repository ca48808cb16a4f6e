"""Questions for infinities and NaNs on a virtual card: numbers count as finite, so that no step is skipped.

Many programs ask before a step whether the loss or the norm of the gradients is finite, and leave the step out where it
is not; so does torch's GradScaler. A virtual card computes neither. Of the two answers a step that is taken needs more
memory (the first one makes the optimizer's states), and it is what all but a few steps of a real training do.

``torch.isnan``, ``isinf`` and ``isfinite`` run as they are, with what they allocate; then the answer is copied to their
result on the card. The same holds for what is asked of such results: any, all, and, or, not, and for copies of another
type. A number of which that was asked is a loss or a norm: compared with 0 or an infinity it counts as positive.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from oomscope import virtual

NOTE: Final = "losses and gradients count as finite: torch.isnan and torch.isinf answered no, torch.isfinite yes"
_ASKED: Final = {"isnan": False, "isinf": False, "isfinite": True}
_ASKED_OF_ANSWERS: Final[dict[str, Callable[..., bool]]] = {
    **dict.fromkeys(("any", "all", "max", "to", "type", "bool", "byte", "int", "float", "half"), bool),
    "logical_not": lambda one: not one,
    "logical_or": lambda one, other: one or other,
    "logical_or_": lambda one, other: one or other,
    "logical_and": lambda one, other: one and other,
    "bitwise_or": lambda one, other: one or other,
    "bitwise_and": lambda one, other: one and other,
    "bitwise_not": lambda one: not one,
    "__or__": lambda one, other: one or other,
    "__and__": lambda one, other: one and other,
    "__invert__": lambda one: not one,
}
_COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    written: getattr(operator, name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for written in (name, f"__{name}__")
}
_BOUNDS: Final = (0, math.inf, -math.inf)
_MOST_ELEMENTS: Final = 1 << 20
"""Of a result whose answer is copied: the card holds copies of up to 1 MiB."""
_ANSWER: Final = "_oomscope_answer"
_IS_ASKED: Final = "_oomscope_is_asked"
Owner = Any
"""``torch`` or ``torch.Tensor``."""


@contextmanager
def numbers_are_finite(note: Callable[[str], None]) -> Iterator[None]:
    """Answer such questions while the block runs on a virtual card; ``note`` is told, once, where one was asked."""
    if not virtual.is_loaded():
        yield
        return
    told: list[bool] = []

    def tell() -> None:
        if not told:
            told.append(True)
            note(NOTE)

    replaced: list[tuple[Owner, str, Callable[..., Any]]] = []
    for owner in (torch, torch.Tensor):
        for name in (*_ASKED, *_ASKED_OF_ANSWERS, *_COMPARED):
            if owner is torch and name.startswith("__"):
                continue
            function = getattr(owner, name, None)
            if not callable(function):  # torch.bool is no function
                continue
            replaced.append((owner, name, function))
            setattr(owner, name, _answering(function, name, tell))
    try:
        yield
    finally:
        for owner, name, function in replaced:
            setattr(owner, name, function)


def _answering(function: Callable[..., Any], name: str, tell: Callable[[], None]) -> Callable[..., Any]:
    answer_of = _ASKED_OF_ANSWERS.get(name)

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if torch.compiler.is_compiling():
            return result
        answer: bool | None
        if name in _ASKED:
            answer = _ASKED[name]
            _ask(args)
        elif answer_of is None:
            answer = _compared(name, args)
        else:
            known = [_answer_in(each) for each in args if isinstance(each, torch.Tensor)]
            answer = answer_of(*known) if known and None not in known else None
        if answer is not None and _write(result, answer):
            tell()
        return result

    return asked


def _ask(args: tuple[Any, ...]) -> None:
    """Note with a number on the card that it was asked whether it is finite."""
    asked = args[0] if args else None
    if type(asked) is torch.Tensor and asked.is_cuda and asked.numel() == 1 and not asked.is_inference():
        setattr(asked, _IS_ASKED, asked._version)


def _compared(name: str, args: tuple[Any, ...]) -> bool | None:
    """Return how such a number compares with 0 or an infinity; None where it was not asked, or has changed since."""
    if len(args) != 2 or getattr(args[0], _IS_ASKED, None) is None:
        return None
    number, bound = args
    is_same = getattr(number, _IS_ASKED) == number._version
    is_bound = isinstance(bound, (int, float)) and bound in _BOUNDS
    return _COMPARED[name](1.0, bound) if is_same and is_bound else None


def _write(result: Any, answer: bool) -> bool:
    """Let each element of a ``result`` on the card be ``answer``; return whether that could be done."""
    is_plain = type(result) is torch.Tensor and result.is_cuda
    if not is_plain or result.is_inference() or torch.cuda.is_current_stream_capturing():
        return False
    if result.numel() <= _MOST_ELEMENTS:  # no program reads more of them
        result.detach().copy_(torch.full(result.shape, answer, dtype=result.dtype))
    setattr(result, _ANSWER, (answer, result._version))
    return True


def _answer_in(tensor: torch.Tensor) -> bool | None:
    """Return the answer that ``tensor`` holds; None where it holds none, or was changed since."""
    answer, version = getattr(tensor, _ANSWER, (None, None))
    return answer if answer is not None and version == tensor._version else None


GRADIENTS_NOTE: Final = "gradients in fp16 count as finite: GradScaler skipped no step"


@contextmanager
def no_step_skipped(note: Callable[[str], None]) -> Iterator[None]:
    """Let GradScaler take each step while the block runs on a virtual card; ``note`` is told, once, where it does."""
    if not virtual.is_loaded():
        yield
        return
    scaler = torch.amp.GradScaler
    asks = scaler._maybe_opt_step
    told: list[bool] = []

    def takes(self: object, optimizer: torch.optim.Optimizer, state: object, *args: Any, **kwargs: Any) -> Any:
        if not told:
            told.append(True)
            note(GRADIENTS_NOTE)
        return optimizer.step(*args, **kwargs)

    setattr(scaler, "_maybe_opt_step", takes)  # noqa: B010 - torch's own, and typed
    try:
        yield
    finally:
        setattr(scaler, "_maybe_opt_step", asks)  # noqa: B010
