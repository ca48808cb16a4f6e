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
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _device as default_device
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from oomscope import virtual
from oomscope.probe.recording.replaced import Method, Place, replaced, replaced_in
from oomscope.probe.recording.values.decisive_operands import decided_by_one

MOST_ELEMENTS: Final = 1 << 22
"""Of a tensor whose values are followed."""
MOST_NUMBERS: Final = 1 << 18
"""Of a tensor of floating-point numbers whose values are followed: counters, flags and masks."""
MOST_BYTES: Final = 32 << 20
"""Of the storage behind it, which is copied for each operation."""
_MUCH_BYTES: Final = 16 << 20
_LEAST_PART: Final = 128
"""A part of a storage of more bytes than that is followed where it is at least this share of it: an expert's mask."""
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
    *("clone", "contiguous", "to", "type", "bool", "int", "long", "byte"),
)
_CHANGED: Final = (
    *("add_", "sub_", "mul_", "clamp_", "masked_fill_", "logical_and_", "logical_or_", "logical_not_", "copy_"),
    *("bitwise_and_", "bitwise_or_"),
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
    *("embedding", "nll_loss", "index_add", "scatter", "scatter_add", "take_along_dim"),
    *("masked_scatter", "masked_scatter_", "masked_select"),
)
"""Functions of numbers that read indices, targets or masks."""
_READ_BY_LAYERS: Final = ("cross_entropy", "scaled_dot_product_attention", "pad")
"""The same, in ``torch.nn.functional``; and padding."""
_ANSWERED: Final = ("equal", "allclose")
"""Functions that return a bool of Python."""
_CHECKPOINT: Final = "torch.utils.checkpoint"
"""Whose modes pass every operation on to the card."""
_COMPUTED: Final = (*_COMPARED, *_COMBINED, *_REDUCED, *_MOVED, *_CHANGED, *_OPERATORS, *_READ)
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
            with _OutOfModes():
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
            _note_known(result)
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
        with _OutOfModes():
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
        with _OutOfModes():
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
            if isinstance(value, (bool, int, float)):
                with _OutOfModes():
                    write_values(result, torch.full(result.shape, value, dtype=result.dtype, device="cpu"))
        return result

    return called


_owners: dict[int, TensorWeakRef] = {}
"""Of storages, the tensor in ``_known``: what C++ expands in backward is a view that does not say so."""
_known = WeakTensorKeyDictionary()
"""Of tensors that the card held, without views of others: storage, address and version then.

A storage that is referred to, though weakly, has no successor with its number; an address has.
"""


def _note_known(tensor: torch.Tensor) -> None:
    if tensor.is_inference():
        return
    owner = tensor if tensor._base is None else tensor._base
    storage = owner.untyped_storage()
    if virtual.is_held(storage.data_ptr(), storage.nbytes()):
        _known[owner] = (StorageWeakRef(storage), storage.data_ptr(), owner._version)
        _owners[storage._cdata] = TensorWeakRef(owner)


def _note_changed(tensor: torch.Tensor) -> None:
    """Forget what was in ``tensor``, unless the card holds what is there now: a copy from the host."""
    storage = tensor.untyped_storage()
    if virtual.is_held(storage.data_ptr(), storage.nbytes()):
        _note_known(tensor)
    else:
        virtual.unhold(storage.data_ptr(), storage.nbytes())


def _is_unchanged(tensor: torch.Tensor) -> bool:
    """Whether the values of ``tensor`` were known, and nothing that torch knows of was written into it since.

    Of floating-point numbers torch does not always know: of gradient scalers and running means it counts no version.
    What the kernels of others write, the card forgets. Not seen is what is written through ``.data``, a storage or
    another tensor over the same memory, by a function without a wrapper.
    """
    if tensor.is_inference() or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return False
    owner: torch.Tensor | None = tensor if tensor._base is None else tensor._base
    if owner not in _known:
        noted = _owners.get(tensor.untyped_storage()._cdata)
        owner = noted() if noted is not None else None
    if owner is None or owner not in _known:
        return False
    reference, address, version = _known[owner]
    storage = owner.untyped_storage()
    return (reference.cdata, address, version) == (storage._cdata, storage.data_ptr(), owner._version)


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
    changes_first = name in _CHANGED or (name.startswith("__i") and name != "__invert__")

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs or (torch.compiler.is_compiling() and not is_folding):
            return function(*args, **kwargs)
        followed, others = _operands(args, kwargs)
        if not followed and (others or not is_folding):
            return function(*args, **kwargs)
        kept = HeldOperands()
        unknown = [each for each in followed if not kept.take(each)]
        result = function(*args, **kwargs)
        if others or unknown:
            if not changes_first:
                kept.put_back()
            elif is_followed(args[0]):
                _note_changed(args[0])
            _write_decided(name, kept.known_of(args), result)
            return result
        if name == "to":  # an integer is a device's index
            args = tuple("cuda" if type(each) is int else each for each in args)
            kwargs = {k: "cuda" if type(v) is int else v for k, v in kwargs.items()}
        try:
            with _OutOfModes():
                expected = function(*map(kept.on_host, args), **{k: kept.on_host(v) for k, v in kwargs.items()})
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return result  # what the host refuses stays unknown
        kept.put_back(changed=changes_first)
        for one, value in zip(_tensors_in(result), _tensors_in(expected), strict=False):
            if is_writable(one) and one.untyped_storage().data_ptr() not in kept.addresses:
                write_values(one, value)
        return result

    return called


def _write_decided(name: str, operands: list[torch.Tensor | bool], result: Any) -> None:
    """Let the card hold a result that one of the known ``operands`` decides."""
    if is_writable(result):
        with _OutOfModes():
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


class _OutOfModes:
    """Hides what a block does from selective activation checkpointing, which counts the operations that it sees.

    A class: Dynamo would compile the frames of contextlib.
    """

    def __enter__(self) -> None:
        """Leave the modes."""
        self._left = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._left is not None:
            self._left.__enter__()

    def __exit__(self, *error: object) -> None:
        """Enter them again."""
        if self._left is not None:
            self._left.__exit__(None, None, None)


def _has_its_numbers(tensor: torch.Tensor) -> bool:
    """Whether the memory of ``tensor`` holds the numbers that it stands for."""
    return tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())


def is_on_host(tensor: Any) -> bool:
    """Whether ``tensor`` is one of the host, whose values are there."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and _has_its_numbers(tensor)


def is_writable(tensor: Any) -> bool:
    """Whether values of a tensor can be written to the card now."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cuda
        and _has_its_numbers(tensor)
        and 0 < tensor.numel() <= MOST_ELEMENTS
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(mode).__module__ == _CHECKPOINT for mode in _get_current_dispatch_mode_stack())
        and tensor.untyped_storage().nbytes() <= MOST_BYTES
        and not torch.cuda.is_current_stream_capturing()
    )


def is_followed(tensor: Any) -> bool:
    """Whether the values of ``tensor`` decide enough, and are few enough, to be computed on the host."""
    if type(tensor) is not torch.Tensor or not tensor.is_cuda or tensor.requires_grad:
        return False
    is_exact = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    if not (is_exact or tensor.numel() <= MOST_NUMBERS) or not is_writable(tensor):
        return False
    return tensor.untyped_storage().nbytes() <= max(_MUCH_BYTES, _LEAST_PART * tensor.nbytes)


def write_values(tensor: torch.Tensor, values: torch.Tensor, *, are_noted: bool = True) -> None:
    """Let a tensor on the card hold what the host computed, where it can."""
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        return
    with _OutOfModes():
        values = values.contiguous() if tensor.is_contiguous() else torch.empty_like(tensor, device="cpu").copy_(values)
    if not tensor.is_contiguous() and values.stride() != tensor.stride():  # it has gaps, or elements that share memory
        return
    virtual.write_held(tensor.data_ptr(), values.data_ptr(), values.nbytes, virtual.Origin.COMPUTED)
    if are_noted:
        _note_known(tensor)


class HeldOperands:
    """The operands of one call on the host, whole storages: what overlaps on the card overlaps here."""

    def __init__(self, *, are_noted: bool = True) -> None:
        self._are_noted = are_noted
        self._tensors: list[torch.Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._origins: dict[int, virtual.Origin] = {}
        self._on_host: dict[int, torch.Tensor] = {}

    @property
    def addresses(self) -> frozenset[int]:
        """Where their storages begin on the card."""
        return frozenset(self._storages)

    def take(self, tensor: torch.Tensor) -> bool:
        """Read a tensor from the card; return whether all of its storage is known."""
        whole = tensor.untyped_storage()
        address, size = whole.data_ptr(), whole.nbytes()
        if address not in self._storages:
            if not (virtual.is_held(address, size) or _is_unchanged(tensor)):
                return False
            copy = torch.UntypedStorage(size)
            origin = virtual.read_held(copy.data_ptr(), address, size)
            if origin is virtual.Origin.NOT_HELD and _is_unchanged(tensor):
                origin = virtual.read_last_held(copy.data_ptr(), address, size)
            elif origin is not virtual.Origin.NOT_HELD and self._are_noted:
                _note_known(tensor)
            if origin is virtual.Origin.NOT_HELD:
                return False
            self._tensors.append(tensor)
            self._origins[address] = origin
            self._storages[address] = copy
        with _OutOfModes():
            host = torch.empty(0, dtype=tensor.dtype, device="cpu")
            host.set_(self._storages[address], tensor.storage_offset(), tensor.size(), tensor.stride())
        self._on_host[id(tensor)] = host
        return True

    def on_host(self, argument: Any) -> Any:
        """Return an argument with its tensors, and the device, on the host."""
        if type(argument) in (tuple, list):
            return type(argument)(map(self.on_host, argument))
        if isinstance(argument, torch.Tensor):
            return self._on_host[id(argument)]
        if isinstance(argument, torch.device) or (isinstance(argument, str) and argument.startswith("cuda")):
            return "cpu"
        if isinstance(argument, str) and argument.startswith("torch.cuda."):
            return argument.replace("torch.cuda.", "torch.", 1)
        return argument

    def known_of(self, arguments: Iterable[Any]) -> list[torch.Tensor | bool]:
        """Return those of a call's arguments that are booleans or among the operands, on the host."""
        found = (each if type(each) is bool else self._on_host.get(id(each)) for each in arguments)
        return [each for each in found if each is not None]

    def put_back(self, *, changed: bool = False) -> None:
        """Write the operands to the card again, and what the call changed in place."""
        for address, storage in self._storages.items():
            origin = virtual.Origin.COMPUTED if changed else self._origins[address]
            virtual.write_held(address, storage.data_ptr(), storage.nbytes(), origin)
        if changed:
            for tensor in self._tensors:
                _note_known(tensor)
