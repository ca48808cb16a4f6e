"""Computes on the host what the kernels of a virtual card would compute, so that values are those of a real run.

Each operation of torch that has a kernel for CUDA runs on the card as it is, with what it allocates. Before that, the
host computes the same from the same bytes; afterwards its result is written where the card put its own. So sizes that
depend on values (``x[mask]``, ``nonzero``, ``nms``) are those of a real run. It takes as long as the program does on
the host, and as much of the host's memory as the program uses of the card.

What an operation returns that the host cannot compute is unknown, and so is what follows from it: the card counts what
is read of it, as ever. So it is with kernels that no operation of torch starts: Triton's, those of extensions and of
replayed graphs.

The operations are replaced where torch dispatches them to CUDA. A ``TorchDispatchMode`` would be simpler, but autograd
adds up gradients out of place where one is active, which needs more memory.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from oomscope import virtual
from oomscope.probe.recording.replaced import replaced
from oomscope.probe.recording.values.bytes_on_host import has_storage, hold, is_held, on_host, unhold, write
from oomscope.probe.recording.values.held_values import OutOfModes
from oomscope.probe.recording.values.kernels_on_host import KERNELS
from oomscope.probe.recording.values.storages import number_of

_KEY: Final = "CUDA"
_WITHOUT_KERNEL: Final = "aten::copy_"
"""The operation that works on the card and has no kernel for it alone."""
_EMPTY: Final = frozenset(("empty", "empty_strided"))
"""Operations whose result has no values yet. It counts as held: a program writes before it reads."""
_OVERWRITTEN: Final = frozenset(
    ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_")
)
"""Operations that read nothing of the tensor that they change."""
_NAMESPACES_OF_OTHERS: Final = frozenset(("c10d", "symm_mem", "fsdp"))
"""Of operations that exchange values with other processes."""
_COUNTED: Final = frozenset(("nonzero", "nms", "unique_consecutive", "unique_dim", "_unique2"))
"""Operations that read from the card how many elements they return."""
_REFUSED: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What operations raise on the host where it cannot do what the card can."""


@contextmanager
def values_are_computed(refused: dict[str, None]) -> Iterator[None]:
    """Compute the operations of this process while the block runs.

    Args:
        refused: gets the names of operations that the host cannot compute.
    """
    with ExitStack() as libraries:
        replacing = _Replacing(libraries, refused)
        replacing.replace_new()
        load: Callable[[str], None] = torch.ops.load_library

        def loaded(path: str) -> None:
            load(path)
            replacing.replace_new()

        with replaced([(torch.ops, "load_library", loaded)]):
            yield


class _Replacing:
    """Puts our functions in place of kernels.

    Args:
        libraries: gets what undoes it.
        refused: gets the names of operations that the host cannot compute.
    """

    def __init__(self, libraries: ExitStack, refused: dict[str, None]) -> None:
        self._libraries = libraries
        self._refused = refused
        self._seen: set[str] = set()
        self._thread = _Thread()

    def replace_new(self) -> None:
        """Replace the kernels that were registered since the last call."""
        key = getattr(torch._C.DispatchKey, _KEY)
        names = set(torch._C._dispatch_get_all_op_names()) - self._seen
        self._seen |= names
        ours: dict[str, torch.library.Library] = {}
        for name in sorted(names):
            if name != _WITHOUT_KERNEL and not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
                continue
            namespace, _, rest = name.partition("::")
            func = _operation(namespace, rest)
            if namespace in _NAMESPACES_OF_OTHERS or func is None or _returns_view(func):
                continue
            if namespace not in ours:
                ours[namespace] = torch.library.Library(namespace, "IMPL")
                self._libraries.callback(ours[namespace]._destroy)
            operation = _Operation(func, torch.library.get_kernel(name, _KEY), self._thread, self._refused)
            ours[namespace].impl(rest, operation, _KEY, with_keyset=True, allow_override=True)


class _Thread(threading.local):
    """How deep a thread is in operations that call operations."""

    depth = 0


class _Operation:
    """What runs in place of an operation's kernel.

    Args:
        func: the operation, by its schema.
        kernel: that of the card.
        thread: shared by all operations.
        refused: gets the name of the operation if the host cannot compute it.
    """

    def __init__(self, func: Any, kernel: Any, thread: _Thread, refused: dict[str, None]) -> None:
        self._func, self._kernel, self._thread, self._refused = func, kernel, thread, refused
        arguments = enumerate(func._schema.arguments)
        self._tensors = tuple(index for index, each in arguments if str(each.type) == "Tensor")

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it on the card and on the host."""
        if any(index < len(args) and isinstance(args[index], (int, float, complex)) for index in self._tensors):
            args = _with_tensors(args, self._tensors)  # torch gives a number as such that x + 1 has made a tensor
        is_outermost = self._thread.depth == 0
        call = _Call(self._func, functools.partial(self._kernel.call_boxed, keys), args, kwargs)
        self._thread.depth += 1
        try:
            result = call.run(is_outermost=is_outermost)
        except BaseException as error:  # noqa: BLE001 - raised again, also an interrupt
            del call, args, kwargs  # who catches the error must not keep the operands
            raise error.with_traceback(None) from None
        finally:
            self._thread.depth -= 1
        if call.is_refused and is_outermost and (self._func._schema.is_mutable or _on_card(result)):
            self._refused[str(self._func)] = None
        return result


class _Call:
    """One call of an operation, and its operands on the card."""

    def __init__(self, func: Any, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func, self._kernel, self._args, self._kwargs = func, kernel, args, kwargs
        self._operands = _on_card((args, kwargs))
        self._name = _name_of(func)
        self.is_refused = False
        """The host could not compute it, though the operands are known."""

    def run(self, *, is_outermost: bool) -> Any:
        """Return what the operation returns.

        What an operation allocates for itself has no values before one of its kernels writes them.
        """
        if self._name in _EMPTY:
            result = self._kernel(*self._args, **self._kwargs)
            hold(result) if is_outermost else unhold(result)
            return result
        changed, overwritten = self._what_changes()
        with torch._C._AutoDispatchBelowAutograd(), OutOfModes():
            computed = self._computed(changed, overwritten)
            answers = self._answers(computed[1]) if computed is not None else []
        with virtual.kept(), virtual.expecting(*answers) if answers else nullcontext():
            result = self._kernel(*self._args, **self._kwargs)
        with torch._C._AutoDispatchBelowAutograd(), OutOfModes():
            if computed is None:
                for each in (*changed, *self._new(result)):
                    unhold(each)
            else:
                for each, (copy, was_held) in zip(changed, computed[0], strict=True):
                    write(each, copy, are_gaps_known=was_held)
                self._write_result(result, computed[1])
        return result

    def _what_changes(self) -> tuple[list[torch.Tensor], set[int]]:
        """Return the operands that the operation changes, and the ids of those of which it reads nothing."""
        changed: list[torch.Tensor] = []
        is_overwritten = self._name in _OVERWRITTEN
        for index, argument in enumerate(self._func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = self._args[index] if index < len(self._args) else self._kwargs.get(argument.name)
                changed += _on_card(given)
                is_overwritten = is_overwritten or argument.is_out
        places = Counter(map(number_of, filter(has_storage, self._operands)))  # x.ge_(y) is ge(x, y, out=x)
        alone = [each for each in changed if is_overwritten and has_storage(each) and places[number_of(each)] == 1]
        return changed, set(map(id, alone))

    def _computed(
        self, changed: list[torch.Tensor], overwritten: set[int]
    ) -> tuple[list[tuple[torch.Tensor, bool]], Any] | None:
        """Return what the host computes; None where it cannot.

        Returns:
            For each tensor that changes its values afterwards, and whether the card held it before; and the result.
        """
        is_known = all(is_held(each) for each in self._operands if id(each) not in overwritten)
        if not is_known or torch.cuda.is_current_stream_capturing():
            return None
        twins = {id(each): on_host(each) for each in self._operands}
        for each in changed:
            twin = twins[id(each)]
            twins[id(each)] = torch.empty_like(twin) if id(each) in overwritten else twin.clone()

        def given(argument: Any) -> Any:
            if isinstance(argument, torch.Tensor):
                return twins.get(id(argument), argument)
            if isinstance(argument, torch.Generator):
                return None
            return torch.device("cpu") if _is_card(argument) else argument

        kwargs = {name: tree_map(given, value) for name, value in self._kwargs.items() if name != "pin_memory"}
        try:
            with self._drawing():
                result = KERNELS.get(self._name, self._func)(*tree_map(given, self._args), **kwargs)
        except _REFUSED:
            self.is_refused = True
            return None
        return [(twins[id(each)], is_held(each)) for each in changed], result

    def _drawing(self) -> AbstractContextManager[None]:
        """Draw random numbers by where the card's generator stands."""
        if not _draws(self._func):
            return nullcontext()
        given = [each for each in tree_leaves((self._args, self._kwargs)) if isinstance(each, torch.Generator)]
        return _drawing_like(given[0] if given else torch.cuda.default_generators[torch.cuda.current_device()])

    def _answers(self, expected: Any) -> list[bytes]:
        """Return what the operation reads back from the card while it runs, where its result is as ``expected``."""
        if self._name in _COUNTED:
            count = self._count(expected)
            return [struct.pack("i", count), struct.pack("q", count)]
        if self._name == "repeat_interleave":  # before torch 2.12 it asks for the least repeat, and if it is negative
            return [struct.pack("q", len(expected)), struct.pack("q", 0), struct.pack("?", True)]
        if self._name == "bincount" and self._args[0].numel():
            numbers = on_host(self._args[0])
            return [bytes(each.reshape(1).view(torch.uint8).tolist()) for each in (numbers.min(), numbers.max())]
        if self._name == "_linalg_check_errors":
            return [struct.pack("?", False)]  # the host did not raise
        return [struct.pack("?", expected)] if isinstance(expected, bool) else []

    def _count(self, expected: Any) -> int:
        """Return how many elements the operation finds."""
        if self._name == "_unique2" and self._args[0].dtype is torch.bool:  # reads how many are true
            return int(on_host(self._args[0]).count_nonzero())
        if self._name == "unique_dim":
            return int(expected[0].shape[self._args[1]])
        return len(expected if isinstance(expected, torch.Tensor) else expected[0])

    def _new(self, result: Any) -> list[torch.Tensor]:
        """Return the tensors of a result that the operation made."""
        before = set(map(number_of, filter(has_storage, self._operands)))
        return [each for each in _on_card(result) if has_storage(each) and number_of(each) not in before]

    def _write_result(self, result: Any, expected: Any) -> None:
        """Write what the host computed into the results that the operation made."""
        values = dict(zip(map(id, tree_leaves(result)), tree_leaves(expected), strict=False))
        for one in self._new(result):
            value = values.get(id(one), one)
            if value is None:
                hold(one)
            elif value is one or value.shape != one.shape or not _is_alike(value.dtype, one.dtype):
                unhold(one)
                self.is_refused = self.is_refused or self._name not in ("_unique2", "unique_dim")  # more than was asked
            else:
                write(one, value, are_gaps_known=True)


def _operation(namespace: str, name: str) -> Any:
    """Return the operation of a name such as ``add.Tensor``; None where Python cannot call it."""
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):
        return None


def _name_of(func: Any) -> str:
    """Return the name of an operation without its namespace and overload."""
    return str(func._schema.name).partition("::")[2]


def _is_card(device: Any) -> bool:
    return isinstance(device, (torch.device, str)) and str(device).startswith("cuda")


def _is_alike(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether numbers of one type can be written as another: the host keeps some in a narrower type, or a wider one."""
    return one == other or (one.is_floating_point and other.is_floating_point)


def _on_card(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor) and each.is_cuda]


def _returns_view(func: Any) -> bool:
    """Whether an operation returns a view, or changes what a tensor is a view of."""
    aliases = [each.alias_info for each in func._schema.returns if each.alias_info is not None]
    is_view = bool(aliases) and not any(each.is_write for each in aliases)
    return is_view or torch.Tag.inplace_view in func.tags or _name_of(func) in ("set_", "resize_", "record_stream")


def _draws(func: Any) -> bool:
    """Whether an operation draws random numbers."""
    takes_generator = any("Generator" in str(each.type) for each in func._schema.arguments)
    return takes_generator or torch.Tag.nondeterministic_seeded in func.tags


def _with_tensors(args: Sequence[Any], tensors: Sequence[int]) -> tuple[Any, ...]:
    """Return arguments with tensors in place of numbers at these places, of the type that the result has anyway."""
    like = next(each for each in args if isinstance(each, torch.Tensor))
    return tuple(
        torch.scalar_tensor(each, dtype=torch.result_type(like, each), device="cpu")
        if index in tensors and isinstance(each, (int, float, complex))
        else each
        for index, each in enumerate(args)
    )


@contextmanager
def _drawing_like(generator: torch.Generator) -> Iterator[None]:
    """Draw from the host's generator as if it were this one of the card; afterwards it stands where it stood.

    What is computed again from the same state, as by checkpoints, draws the same.
    """
    before = torch.default_generator.get_state()
    place = generator.get_offset() if generator.device.type == "cuda" else 0
    torch.default_generator.manual_seed(hash((generator.initial_seed(), place)) & (2**63 - 1))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
