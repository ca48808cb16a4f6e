"""Integers that the host can compute for a virtual card, so that masks and positions decide as on a real one.

Models ask small tensors of integers and booleans what to do next: are the positions those of one sequence, does the
mask hide anything. The card computes none of it, and what follows would depend on values that nobody knows. Where the
card holds every operand (it was copied there, or computed so), the function runs as it is, with what it allocates, and
is computed once more on the host; that result is written to the card. Operands are written again, because the card
holds nothing of what a kernel was given; so are the indices, targets and masks that functions of floating-point numbers
read. Those numbers are left alone, but for a few at a time: they are many, and sizes seldom depend on them. The card
also counts as unknown what a kernel only read where no wrapper sees it: in backward, in functions of C++, and where an
old address is left among a kernel's arguments. Such a tensor still counts as known while its version says that nothing
was written into it.
"""

from __future__ import annotations

import functools
import inspect
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

import torch
from torch.utils import _device as default_device
from torch.utils._python_dispatch import (
    TorchDispatchMode,
)

from oomscope import virtual
from oomscope.probe.recording.replaced import Method, Place, replaced, replaced_in
from oomscope.probe.recording.values.decisive_operands import decided_by_one
from oomscope.probe.recording.values.filled_parts import fill_part, version_of
from oomscope.probe.recording.values.held_values import (
    MOST_ELEMENTS,
    HeldOperands,
    OutOfModes,
    is_followed,
    is_writable,
    note_changed,
    note_known,
    write_values,
)
from oomscope.probe.recording.values.storages import start_of

_FILLED: Final[dict[str, int | None]] = {
    "full": None,
    "full_like": None,
    "new_full": None,
    "fill_": None,
    "ones": 1,
    "ones_like": 1,
    "new_ones": 1,
    "zeros": 0,
    "zeros_like": 0,
    "new_zeros": 0,
    "zero_": 0,
}
"""Functions whose result has one value everywhere; None: the value is their last positional or ``fill_value``."""
_COMPARED: Final = (
    *("eq", "ne", "lt", "le", "gt", "ge", "isin"),
    *("not_equal", "less", "less_equal", "greater", "greater_equal"),
)
_COMBINED: Final = (
    *("add", "sub", "subtract", "mul", "multiply", "neg", "div", "divide", "true_divide", "remainder", "floor_divide"),
    *("clamp", "clip", "minimum", "maximum", "where", "masked_fill", "abs", "ceil", "floor", "outer"),
    *("logical_and", "logical_or", "logical_not", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor"),
)
_REDUCED: Final = (
    *("any", "all", "_is_all_true", "sum", "prod", "mean", "median", "count_nonzero"),
    *("max", "min", "amax", "amin", "argmax", "argmin"),
    *("searchsorted", "bucketize"),
    *("cumsum", "cumprod", "cummax", "diff", "histc"),
)
_MOVED: Final = (
    *("cat", "concat", "stack", "hstack", "vstack", "reshape", "flatten", "repeat", "repeat_interleave", "tile"),
    *("flip", "roll", "tril", "triu"),
    *("sort", "argsort", "topk", "gather", "index_select", "unfold", "unique_consecutive"),
    *("clone", "contiguous", "to", "type", "bool", "int", "long", "byte", "type_as"),
)
_CHANGED: Final = (
    *("add_", "sub_", "mul_", "clamp_", "masked_fill_", "logical_and_", "logical_or_", "logical_not_", "copy_"),
    *("bitwise_and_", "bitwise_or_", "lt_", "le_", "gt_", "ge_", "eq_", "ne_", "div_"),
    *("scatter_", "scatter_add_", "index_add_", "index_fill_", "index_copy_", "index_put_"),
    "__setitem__",
)
_OPERATORS: Final = tuple(
    f"__{name}__"
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "neg"),
        *("mod", "truediv", "rtruediv", "floordiv"),
        *("and", "or", "xor", "invert", "iadd", "isub", "imul", "iand", "ior"),
    )
)
"""Without ``__getitem__``: with one of Python's a tensor is a sequence, and torch.tensor([loss]) asks its length."""
_READ: Final = (
    *("embedding", "embedding_bag", "nll_loss", "index_add", "scatter", "scatter_add", "take_along_dim"),
    *("masked_scatter", "masked_scatter_", "masked_select"),
)
"""Functions of numbers that read indices, targets or masks."""
_READ_BY_LAYERS: Final = ("cross_entropy", "scaled_dot_product_attention", "pad")
"""The same, in ``torch.nn.functional``; and padding."""
_ANSWERED: Final = ("equal", "allclose")
"""Functions that return a bool of Python."""
_COMPUTED: Final = (*_COMPARED, *_COMBINED, *_REDUCED, *_MOVED, *_CHANGED, *_OPERATORS, *_READ)
_REFUSED: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What functions raise on the host where it can't do what the card can."""
Function = Callable[..., Any]


@contextmanager
def integers_are_followed() -> Iterator[None]:
    """Compute such integers while the block runs on a virtual card."""
    default_device._device_constructors()  # ``with torch.device(...)`` knows functions as they were at its first use
    wrappers: dict[str, Callable[[Function, str], Function]] = {"arange": _counting}
    wrappers |= dict.fromkeys(_FILLED, _filling) | dict.fromkeys(_COMPUTED, _computing)
    wrappers |= dict.fromkeys(("to", "cuda"), _copying) | dict.fromkeys(_ANSWERED, _asking)
    places = [(owner, name) for name in wrappers for owner in (torch, torch.Tensor)]
    wrappers["one_hot"] = _classifying
    places += [(torch.nn.functional, name) for name in (*_READ_BY_LAYERS, "one_hot")]
    wrapped = []
    for owner, name in places:
        function = getattr(owner, name, None)
        if callable(function):  # torch.bool is no function
            replacement = wrappers.get(name, _computing)(function, name)
            if owner is torch.Tensor:
                replacement = Method(replacement, function)
            replacement = _scriptable(replacement, function)
            if owner is not torch.nn.functional:
                inner = name if owner is torch else f"Tensor.{name}"
                replacement.__module__, replacement.__qualname__ = "torch", inner  # pickled by name
            wrapped.append((owner, name, replacement))
    with replaced(wrapped):
        yield


def _scriptable(wrapped: Function, function: Function) -> Function:
    """Have ``torch.jit.script`` take what replaces a builtin ``function`` for that."""
    if symbol := torch.jit._builtins._find_builtin(inspect.unwrap(function)):
        torch.jit._builtins._register_builtin(wrapped, symbol)
    return wrapped


def _counting(function: Function, name: str) -> Function:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if is_followed(result) and not any(isinstance(each, torch.Tensor) for each in args):
            kept = {key: value for key, value in kwargs.items() if key in ("start", "end", "step", "dtype")}
            with OutOfModes():
                write_values(result, function(*args, **kept, device="cpu"))
        return result

    return called


def _copying(function: Function, name: str) -> Function:
    """Return ``function``, which may copy a tensor to the card: what it holds is known from then on."""
    computing = _computing(function, name) if name == "to" else function  # ``cuda`` would copy once more

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = computing(*args, **kwargs)
        is_new = bool(args) and isinstance(args[0], torch.Tensor) and not args[0].is_cuda
        if is_new and not torch.compiler.is_compiling() and is_followed(result):
            note_known(result)
        return result

    return called


def _classifying(function: Function, name: str) -> Function:
    """Return ``function``, which may read back from the card how many classes there are: the highest number and 1."""
    computing = _computing(function, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        tensor: Any = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
        given = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        kept = HeldOperands()
        if not is_followed(tensor) or not kept.take(tensor):
            return function(*args, **kwargs)
        with OutOfModes():
            highest = int(kept.on_host(tensor).max())
        is_small = tensor.numel() * max(given, highest + 1) <= MOST_ELEMENTS
        with virtual.expecting(*([struct.pack("q", highest)] if given == -1 else [])):
            result = (computing if is_small else function)(*args, **kwargs)
        kept.put_back()
        return result

    return called


def _asking(function: Function, name: str) -> Function:
    """Return ``function``, which reads its answer back from the card."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        followed, others = _operands(args, kwargs)
        kept = HeldOperands()
        if others or not followed or not all(map(kept.take, followed)):
            return function(*args, **kwargs)
        with OutOfModes():
            expected = function(*map(kept.on_host, args), **{k: kept.on_host(v) for k, v in kwargs.items()})
        with virtual.expecting(struct.pack("?", expected)):
            function(*args, **kwargs)
        kept.put_back()
        return expected

    return called


def _filling(function: Function, name: str) -> Function:
    constant = _FILLED[name]

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if is_followed(result):
            value = kwargs.get("fill_value", args[-1] if args else None) if constant is None else constant
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = _number_in(value)
            if isinstance(value, (bool, int, float)):
                with OutOfModes():
                    write_values(result, torch.full(result.shape, value, dtype=result.dtype, device="cpu"))
        return result

    return called


def _number_in(tensor: torch.Tensor) -> Any:
    """Return the only number of a tensor; None where it is not known."""
    if not tensor.is_cuda:
        return tensor.item() if tensor.device.type == "cpu" else None
    kept = HeldOperands()
    return kept.on_host(tensor).item() if is_followed(tensor) and kept.take(tensor) else None


def compiled_constants_are_known() -> AbstractContextManager[None]:
    """Let inductor fold a graph's constants with their real values while the block runs on a virtual card.

    ``ConstantFolder`` runs the operations of constants on the card, reads one element of each result, and writes it
    into the kernels that it generates.
    """

    def places(constant_folding: Any) -> list[Place]:
        folder = constant_folding.ConstantFolder
        run_node = folder.run_node

        def on_both(self: Any, node: Any) -> Any:
            with _ComputedOnBoth():  # type: ignore[no-untyped-call]
                return run_node(self, node)

        return [(folder, "run_node", on_both)]

    return replaced_in("torch._inductor.constant_folding", places)


class _ComputedOnBoth(TorchDispatchMode):
    """Computes each operation on the host too if it has no operands, or only operands that the card holds."""

    def __torch_dispatch__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _computing(func, func.__name__, is_folding=True)(*args, **(kwargs or {}))


def _computing(function: Function, name: str, *, is_folding: bool = False) -> Function:
    """Return ``function``, computed on the host too; while a compiler folds constants also where it takes no tensor."""
    is_in_place = name.endswith("_") and not name.startswith("_")
    changes_first = name in _CHANGED or is_in_place or (name.startswith("__i") and name != "__invert__")

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs or (torch.compiler.is_compiling() and not is_folding):
            return function(*args, **kwargs)
        followed, others = _operands(args, kwargs)
        if not followed and (others or not is_folding):
            return function(*args, **kwargs)
        kept = HeldOperands()
        unknown = [each for each in followed if not kept.take(each)]
        version = version_of(args[0]) if name == "__setitem__" else None
        result = function(*args, **kwargs)
        if others or unknown:
            if not changes_first or _is_apart(args[0], kept):
                kept.put_back()
            if changes_first and is_followed(args[0]):
                note_changed(args[0])
                if version is not None and not others and all(each is args[0] for each in unknown):
                    _assign_part(function, args, kept, version)
            _write_decided(name, kept.known_of(args), result)
            return result
        if name == "to":  # an integer is a device's index
            args = tuple("cuda" if type(each) is int else each for each in args)
            kwargs = {k: "cuda" if type(v) is int else v for k, v in kwargs.items()}
        try:
            with OutOfModes():
                expected = function(*map(kept.on_host, args), **{k: kept.on_host(v) for k, v in kwargs.items()})
        except _REFUSED:
            return result  # what the host refuses stays unknown
        kept.put_back(changed=changes_first)
        for one, value in zip(_tensors_in(result), _tensors_in(expected), strict=False):
            if is_writable(one) and start_of(one) not in kept.addresses:
                write_values(one, value)
        return result

    return called


def _is_apart(changed: Any, kept: HeldOperands) -> bool:
    """Whether none of the operands that are ``kept`` shares memory with a tensor that the function changed."""
    is_plain = type(changed) in (torch.Tensor, torch.nn.Parameter) and changed.layout is torch.strided
    return is_plain and start_of(changed) not in kept.addresses


def _assign_part(function: Function, args: tuple[Any, ...], kept: HeldOperands, version: int) -> None:
    """Note what ``tensor[index] = value`` makes known of a tensor that was not known."""
    tensor, index, value = args
    with OutOfModes():
        index, value = kept.on_host(index), kept.on_host(value)
    with suppress(*_REFUSED):
        fill_part(tensor, version, lambda on_host, is_told: function(on_host, index, True if is_told else value))


def _write_decided(name: str, operands: list[torch.Tensor | bool], result: Any) -> None:
    """Let the card hold a result that one of the known ``operands`` decides."""
    if is_writable(result):
        with OutOfModes():
            decided = decided_by_one(name, operands, result)
        if decided is not None:
            write_values(result, decided)


def _operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], int]:
    """Return the tensors among arguments that are followed, and how many are not."""
    found: list[torch.Tensor] = []
    others = 0
    for argument in (*args, *kwargs.values()) if kwargs else args:
        for each in argument if type(argument) in (tuple, list) else (argument,):
            if isinstance(each, torch.Tensor):
                if is_followed(each):
                    found.append(each)
                else:
                    others += 1
    return found, others


def _tensors_in(result: Any) -> Iterable[torch.Tensor]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    return (each for each in results if isinstance(each, torch.Tensor))
