"""Answers of a virtual card on which control flow depends, where only one is likely in a real training.

Unknown losses and norms count as finite: most steps of a training are taken, and a step that is taken needs more
memory. Arguments that torch checks count as valid, and every rank of SyncBatchNorm has samples. ``trunc_normal_`` draws
again as often as its bounds make likely. The operations run as they are, with what they allocate; then the answer is
copied to their result on the card. Tensors are printed from the host, unknown values as ``?``. See "A training program,
as it is" in docs/probe.md.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch import _tensor_str
from torch.nn import functional, init
from torch.nn.modules import _functions
from torch.overrides import TorchFunctionMode

from oomscope.probe.recording.replaced import Method, Place, replaced, replaced_in
from oomscope.probe.recording.values.card_bytes import hull_bytes, is_held, on_host
from oomscope.probe.recording.values.followed import MOST_NUMBERS, is_known

NOTE: Final = (
    f"losses and gradients count as finite, and so do data of more than {MOST_NUMBERS:,} numbers: torch.isnan and "
    "torch.isinf answered no, torch.isfinite yes"
)
VALID_NOTE: Final = "arguments that torch checks (of distributions, of gaussian_nll_loss) count as valid"
_ASKED: Final = {"isnan": False, "isinf": False, "isfinite": True}
_ASKED_OF_ANSWERS: Final[dict[str, Callable[..., bool]]] = {
    **dict.fromkeys(("any", "all", "_is_all_true", "max", "to", "type", "bool", "byte", "int", "float", "half"), bool),
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
"""Most elements of a result whose answer is copied: the card holds copies of up to 1 MiB."""
_ANSWER: Final = "_oomscope_answer"
_IS_ASKED: Final = "_oomscope_is_asked"
_thread = threading.local()
"""``answers``: answers of functions, by name, inside a function of torch that calls them."""
GRADIENTS_NOTE: Final = "gradients in fp16 count as finite: GradScaler skipped no step"


def _once(note: Callable[[str], None], text: str) -> Callable[[], None]:
    """Return what passes ``text`` on to ``note`` at its first call."""
    return functools.cache(lambda: note(text))


def finite_numbers(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Answer such questions while the block runs; ``note`` is called once, if one was asked."""
    tell = _once(note, NOTE)
    places = []
    for owner in (torch, torch.Tensor):
        for name in (*_ASKED, *_ASKED_OF_ANSWERS, *_COMPARED):
            function = getattr(owner, name, None)
            if callable(function) and not (owner is torch and name.startswith("__")):  # torch.bool is no function
                places.append((owner, name, _standing_for(function, owner, name, _answering(function, name, tell))))
    return replaced(places)


def _standing_for(function: Callable[..., Any], owner: object, name: str, ours: Callable[..., Any]) -> Any:
    """Return what stands in place of a function or method of torch: ours, scripted and pickled as it is."""
    standing: Any = Method(ours, function) if owner is torch.Tensor else ours
    symbol = torch.jit._builtins._find_builtin(inspect.unwrap(function))
    if symbol:
        torch.jit._builtins._register_builtin(standing, symbol)
    standing.__module__, standing.__qualname__ = "torch", name if owner is torch else f"Tensor.{name}"
    return standing


@contextmanager
def arguments_are_valid(note: Callable[[str], None]) -> Iterator[None]:
    """Let what torch checks of arguments hold while the block runs; ``note`` is called once, if it checked.

    For ``gaussian_nll_loss`` :func:`finite_numbers` answers.
    """
    tell = _once(note, VALID_NOTE)

    def holding(check: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(check)
        def checked(*args: Any, **kwargs: Any) -> Any:
            result = check(*args, **kwargs)
            if torch.compiler.is_compiling() or is_known(result):
                return result
            if _write(result, answer=True):
                tell()
            return result

        return checked

    def places(constraints: Any) -> list[Place]:
        kinds = [each for each in vars(constraints).values() if isinstance(each, type) and "check" in vars(each)]
        return [(kind, "check", holding(vars(kind)["check"])) for kind in dict.fromkeys(kinds)]

    loss = functional.gaussian_nll_loss

    @functools.wraps(loss)
    def of_valid(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if torch.compiler.is_compiling() or not any(isinstance(each, torch.Tensor) and each.is_cuda for each in given):
            return loss(*args, **kwargs)
        tell()
        with _answered(any=False):
            return loss(*args, **kwargs)

    with replaced_in("torch.distributions.constraints", places), replaced([(functional, loss.__name__, of_valid)]):
        yield


def ranks_have_samples() -> AbstractContextManager[None]:
    """Let each rank have samples for SyncBatchNorm while the block runs."""
    norm: Any = _functions.SyncBatchNorm
    forward = norm.forward

    @functools.wraps(forward)
    def of_all(*args: Any, **kwargs: Any) -> Any:
        with _answered(__ge__=True):
            return forward(*args, **kwargs)

    return replaced([(norm, "forward", staticmethod(of_all))])


@contextmanager
def _answered(**answers: bool) -> Iterator[None]:
    """Let functions of these names give these answers on this thread while the block runs."""
    before = getattr(_thread, "answers", {})
    _thread.answers = before | answers
    try:
        yield
    finally:
        _thread.answers = before


def no_skipped_step(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Let GradScaler take each step while the block runs; ``note`` is called once, if it did."""
    tell = _once(note, GRADIENTS_NOTE)

    def takes(self: object, optimizer: torch.optim.Optimizer, state: object, *args: Any, **kwargs: Any) -> Any:
        tell()
        return optimizer.step(*args, **kwargs)

    return replaced([(torch.amp.GradScaler, "_maybe_opt_step", takes)])


_MOST_PRINTED: Final = 32 << 20
"""Bytes of a tensor that is copied to be printed."""
_DTYPES: Final = [each for each in vars(torch).values() if isinstance(each, torch.dtype)]
_CONVERTED: Final = frozenset(
    each for each in _DTYPES if each.is_complex or (each.is_floating_point and each.itemsize < 2)
)
"""Types that torch converts before printing."""


def printed_from_the_host() -> AbstractContextManager[None]:
    """Print tensors of the card without work on the card while the block runs."""
    contents_of: Any = _tensor_str._tensor_str

    def contents(tensor: torch.Tensor, indent: int) -> Any:
        is_converted = tensor.is_neg() or tensor.is_conj() or tensor.dtype in _CONVERTED
        is_plain = tensor.is_cuda and tensor.numel() and tensor.layout is torch.strided and not is_converted
        if torch.compiler.is_compiling() or not is_plain:
            return contents_of(tensor, indent)
        is_shown = hull_bytes(tensor) <= _MOST_PRINTED and is_held(tensor)
        return contents_of(on_host(tensor.detach()), indent) if is_shown else "?"

    return replaced([(_tensor_str, "_tensor_str", contents)])


def _answering(function: Callable[..., Any], name: str, tell: Callable[[], None]) -> Callable[..., Any]:
    answer_of = _ASKED_OF_ANSWERS.get(name)

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if torch.compiler.is_compiling():
            return result
        assumed = getattr(_thread, "answers", {}).get(name)
        if assumed is not None:
            return result if _write(result, assumed) else assumed
        answer: bool | None
        if name in _ASKED:
            answer = _ASKED[name]
            _ask(args)
        elif answer_of is None:
            answer = _compared(name, args)
        else:
            known = [_answer_in(each) for each in args if isinstance(each, torch.Tensor)]
            answer = answer_of(*known) if known and None not in known else None
        if answer is None or (answer_of is None and is_known(result)):
            return result
        if _write(result, answer) and answer_of is None:
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


_TRUNC_NORMAL: Final = "_no_grad_trunc_normal_"
_LEAST_NORMAL: Final = 0.3
"""Share of the normal distribution within the bounds from which torch draws normally; below, it draws uniformly."""


def redrawn_as_expected() -> AbstractContextManager[None]:
    """Let ``trunc_normal_`` draw as often as it would in all likelihood while the block runs."""
    draw: Any = getattr(init, _TRUNC_NORMAL, None)

    def drawn(tensor: torch.Tensor, mean: float, std: float, a: float, b: float, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_cuda:
            return draw(tensor, mean, std, a, b, *args, **kwargs)
        with _Rounds(rounds_of(tensor.numel(), mean, std, a, b)):
            return draw(tensor, mean, std, a, b, *args, **kwargs)

    return replaced([(init, _TRUNC_NORMAL, drawn)] if draw else [])


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
