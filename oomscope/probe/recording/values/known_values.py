"""Values that the host computes for a virtual card, whose kernels compute nothing.

An operation runs on the card as it is. If the card holds all operands, the host computes the same, and its result is
written where the card put its own. So sizes that depend on values (``x[mask]``, ``nonzero``, ``unique``) are those of a
real run. Otherwise what an operation returns is unknown, and so is what follows from it: the card counts what is read
of it. Unknown is also what kernels write that no operation of torch starts: Triton's, those of extensions and of
replayed graphs.

**Followed:** small tensors of integers and booleans, and a few numbers. Models ask them what to do next: are the
positions those of one sequence, does the mask hide anything. Other numbers are many, and sizes seldom depend on them:
what requires a gradient is left alone, and so is what is drawn at random.

**Computed:** everything, on a card with ``CardSettings.is_computed``. It takes as long as the program does on the host,
and as much of the host's memory as the program uses of the card.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch

from oomscope import virtual
from oomscope.probe.recording.replaced import replaced
from oomscope.probe.recording.values.card_bytes import (
    Kept,
    hold,
    hull_bytes,
    is_held,
    is_plain,
    on_host,
    unhold,
    write,
)
from oomscope.probe.recording.values.decisive_operands import decided_by_one, is_decisive
from oomscope.probe.recording.values.kernels_on_host import KERNELS
from oomscope.probe.recording.values.operations import (
    CARD,
    SPARSE_CARD,
    Function,
    OnHost,
    names_on,
    operation_of,
    operations_replaced,
    replace,
)
from oomscope.probe.recording.values.storages import number_of

_MOST_ELEMENTS: Final = 1 << 22
"""Of a tensor that is followed."""
_MOST_NUMBERS: Final = 1 << 18
"""Of a followed tensor of floating-point numbers: counters, flags and masks."""
_MOST_BYTES: Final = 32 << 20
"""From the first element of a followed tensor to its last."""
_EMPTY: Final = frozenset(("empty", "empty_strided"))
"""Operations whose result has no values yet."""
_COPY: Final = "copy_"
_FILLING: Final = frozenset(("scatter", "scatter_", "index_copy", "index_copy_", "_index_put_impl_"))
"""Operations that write parts of a tensor: with the right indices all of it."""
_OVERWRITTEN: Final = frozenset(
    (_COPY, "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_")
)
"""Operations that read nothing of the tensor that they change."""
_NOT_REPLACED: Final = frozenset(("set_", "resize_", "record_stream", "_local_scalar_dense"))
"""Operations that change no value."""
_GIVEN_A_NUMBER: Final = "aten::pow.Tensor_Tensor_out"
"""2 ** x gives it a number on the card, which torch hands to no function of Python. What calls it is replaced."""
_RUNNING: Final = ("running_mean", "running_var")
_NAMESPACES_OF_OTHERS: Final = frozenset(("c10d", "symm_mem", "fsdp"))
"""Of operations that exchange values with other processes."""
_COUNTED: Final = frozenset(("nonzero", "nms", "unique_consecutive", "unique_dim", "_unique2"))
"""Operations that read from the card how many elements they return."""
_READING: Final = _COUNTED | {"bincount", "repeat_interleave", "_linalg_check_errors", "equal"}
"""Operations that read something from the card."""
_NUMBERS: Final = frozenset((int, float, bool, complex))
_REFUSED: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What operations raise on the host where it cannot do what the card can."""


def values_are_followed() -> AbstractContextManager[None]:
    """Follow few values while the block runs."""
    return _known_values(is_followed, None)


def values_are_computed(refused: dict[str, None]) -> AbstractContextManager[None]:
    """Compute all values while the block runs.

    Args:
        refused: gets the names of operations that the host cannot compute.
    """
    return _known_values(None, refused)


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor on the card decide enough, and are few enough, to be computed on the host."""
    return is_plain(tensor) and not _is_left_alone(tensor) and hull_bytes(tensor) <= _MOST_BYTES


def is_few_integers(tensor: torch.Tensor) -> bool:
    """Whether a tensor that is followed has no floating-point numbers."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and is_followed(tensor)


def _is_left_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor is too large to be followed, or requires a gradient."""
    if tensor.requires_grad:
        return True
    count = tensor.numel()
    return count > _MOST_NUMBERS and (count > _MOST_ELEMENTS or tensor.is_floating_point() or tensor.is_complex())


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor on the card are followed and known."""
    return is_followed(tensor) and is_held(tensor)


@contextmanager
def _known_values(is_small: Callable[[torch.Tensor], bool] | None, refused: dict[str, None] | None) -> Iterator[None]:
    with ExitStack() as libraries:
        replacing = _Replacing(libraries, is_small, {} if refused is None else refused)
        replacing.replace_new()
        load: Callable[[str], None] = torch.ops.load_library

        def loaded(path: str) -> None:
            load(path)
            replacing.replace_new()

        others = [operations_replaced({"_coalesce": _coalesce}, SPARSE_CARD), operations_replaced(_SEARCHED)]
        with replaced([(torch.ops, "load_library", loaded)]), others[0], others[1]:
            yield


class _Replacing:
    """Puts ours in place of the operations that have a kernel for the card.

    Args:
        libraries: gets what undoes it.
        is_small: whether a tensor is small enough; None where any is.
        refused: gets the names of operations that the host cannot compute.
    """

    def __init__(
        self, libraries: ExitStack, is_small: Callable[[torch.Tensor], bool] | None, refused: dict[str, None]
    ) -> None:
        self._libraries, self._is_small, self._refused = libraries, is_small, refused
        self._seen: set[str] = set()
        self._thread = _Thread()

    def replace_new(self) -> None:
        """Replace the operations that were registered since the last call."""
        names = (names_on(CARD) | {f"aten::{_COPY}"}) - self._seen
        self._seen |= names
        ours: dict[str, Function] = {}
        for name in sorted(names):
            func = operation_of(name)
            if (
                func is None
                or func.namespace in _NAMESPACES_OF_OTHERS
                or _returns_view(func)
                or name == _GIVEN_A_NUMBER
            ):
                continue
            operation = _Operation(func, self._is_small)
            if operation.name not in (*_NOT_REPLACED, *_EMPTY):
                ours[name] = partial(_run, operation, self._thread, self._refused)
            elif operation.name in _EMPTY and self._is_small is None:
                ours[name] = partial(_hold_empty, self._thread)
        replace(self._libraries, ours)


class _Thread(threading.local):
    """How deep a thread is in operations that call operations."""

    depth = 0


def _run(
    operation: _Operation, thread: _Thread, refused: dict[str, None], kernel: Function, *args: Any, **kwargs: Any
) -> Any:
    """Run an operation on the card, and on the host where its operands are known."""
    for index in operation.tensors:
        if index < len(args) and type(args[index]) in _NUMBERS:
            args = _with_tensors(args, operation.tensors)  # torch gives a number as such that x + 1 has made a tensor
            break
    operands = _on_card((*args, *kwargs.values()) if kwargs else args)
    thread.depth += 1
    try:
        if operation.is_certainly_unknown(operands):
            return _run_unknown(operation, kernel, args, kwargs)
        call = _Call(operation, kernel, args, kwargs, operands)
        result = call.run(is_outermost=thread.depth == 1)
    finally:
        thread.depth -= 1
    if call.is_refused and thread.depth == 0 and (operation.changing or _on_card((result,))):
        refused[str(operation.func)] = None
    return result


def _run_unknown(operation: _Operation, kernel: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the card alone: what it returns and changes is unknown afterwards."""
    written = _on_card(operation.changed_of(args, kwargs)) if operation.changing else []
    with Kept() as kept:
        result = kernel(*args, **kwargs)
        if operation.makes_new:
            written += _on_card((result,))
        kept.unhold(written)
    return result


def _hold_empty(thread: _Thread, kernel: Function, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Allocate a tensor without values. A program writes before it reads, so that its tensors count as held.

    What an operation allocates for itself is unknown: kernels that are not seen write there.
    """
    result: torch.Tensor = kernel(*args, **kwargs)
    unhold(result) if thread.depth else hold(result)
    return result


class _Operation:
    """What is known of an operation from its schema.

    Args:
        func: the operation.
        is_small: whether a tensor is small enough to be followed; None where all are computed.
    """

    def __init__(self, func: Any, is_small: Callable[[torch.Tensor], bool] | None) -> None:
        self.func, self.is_small = func, is_small
        self.name = str(func._schema.name).partition("::")[2]
        arguments = list(enumerate(func._schema.arguments))
        self.tensors = tuple(index for index, each in arguments if str(each.type) == "Tensor")
        """The places of arguments that are tensors."""
        written = [(index, each) for index, each in arguments if self._writes(each)]
        self.changing = tuple((index, each.name) for index, each in written)
        """Places and names of the arguments that it changes."""
        self.overwrites = self.name in _OVERWRITTEN or any(each.is_out for _, each in written)
        """It reads nothing of them."""
        takes_generator = any("Generator" in str(each.type) for _, each in arguments)
        self.draws = takes_generator or torch.Tag.nondeterministic_seeded in func.tags
        """It draws random numbers."""
        self.makes_new = any(each.alias_info is None for each in func._schema.returns)
        """It returns new tensors."""
        self.on_host: Function = KERNELS.get(self.name, func)
        self._is_special = self.name == _COPY or is_decisive(self.name)

    def is_certainly_unknown(self, operands: Sequence[torch.Tensor]) -> bool:
        """Whether a look at the operands tells that the host does not compute the operation."""
        if self.is_small is None or self._is_special:
            return False
        return self.draws or any(map(_is_left_alone, operands))

    def changed_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the arguments that it changes."""
        return [args[index] if index < len(args) else kwargs.get(name) for index, name in self.changing]

    def _writes(self, argument: Any) -> bool:
        """Whether the operation changes an argument, also where its schema does not say so (normalisation by batch)."""
        is_undeclared = argument.name in _RUNNING and "backward" not in self.name
        return is_undeclared or (argument.alias_info is not None and argument.alias_info.is_write)


class _Call:
    """One call of an operation, and its operands on the card."""

    def __init__(
        self,
        operation: _Operation,
        kernel: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
    ) -> None:
        self._operation, self._kernel, self._args, self._kwargs = operation, kernel, args, kwargs
        self._operands = operands
        self.is_refused = False
        """The host could not compute it, though the operands are known."""

    def run(self, *, is_outermost: bool) -> Any:
        """Return what the operation returns."""
        operation = self._operation
        changed, overwritten = self._what_changes()
        is_known = self._is_known(overwritten)
        if operation.name == _COPY and (not is_known or not self._args[1].is_cuda):
            return self._copied()
        if operation.name == "zero_" and is_known:
            return self._zeroed(is_by_program=is_outermost)
        deciding = self._deciding() if not is_known and is_decisive(operation.name) else []
        is_first = is_known and bool(changed or operation.name in _READING)
        computed = self._computed(changed, overwritten) if is_first else self._filled(changed)
        answers = self._answers(computed[1]) if computed is not None and operation.name in _READING else []
        with Kept(), virtual.expecting(*answers) if answers else nullcontext():
            result = self._kernel(*self._args, **self._kwargs)
        made = self._made(result)
        if is_known and not is_first and all(operation.is_small is None or operation.is_small(each) for each in made):
            computed = self._computed(changed, overwritten)
        if computed is not None:
            with OnHost():
                for each, values in zip(changed, computed[0], strict=True):
                    write(each, values)
                self._write_result(made, result, computed[1])
            return result
        for each in (*changed, *made):
            unhold(each)
        if deciding:
            self._write_decided(deciding, changed or made)
        return result

    def _copied(self) -> Any:
        """Copy as the card does it: it holds what came from the host in a small copy, and copies of what it holds."""
        to, source = self._args[:2]
        is_followed_so = source.is_cuda and not (self._operation.is_small and _is_left_alone(source))
        was_held = is_followed_so and is_held(source)
        result = self._kernel(*self._args, **self._kwargs)
        if was_held:
            hold(source)
        is_small = self._operation.is_small
        if source.device.type == "cpu" and (is_small is None or is_small(to)) and not is_held(to):
            with OnHost():
                write(to, source)
        return result

    def _zeroed(self, *, is_by_program: bool) -> Any:
        """Set to zero as the card does it, which holds that up to a size; more of what a program asks for itself."""
        result = self._kernel(*self._args)
        (tensor,) = self._operands
        if not is_held(tensor) and (is_by_program or self._operation.is_small is None):
            with OnHost():
                write(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu"))
        return result

    def _what_changes(self) -> tuple[list[torch.Tensor], set[int]]:
        """Return the operands that the operation changes, and the ids of those of which it reads nothing."""
        operation = self._operation
        changed = _on_card(operation.changed_of(self._args, self._kwargs))
        if not changed or not operation.overwrites:
            return changed, set()
        places = Counter(map(number_of, filter(is_plain, self._operands)))  # x.ge_(y) is ge(x, y, out=x)
        return changed, {id(each) for each in changed if is_plain(each) and places[number_of(each)] == 1}

    def _is_known(self, overwritten: set[int]) -> bool:
        """Whether the host can compute the operation: all operands are known, and few where few are followed."""
        operation = self._operation
        if operation.is_small is not None and (operation.draws or not all(map(operation.is_small, self._operands))):
            return False
        is_held_where_read = all(is_held(each) for each in self._operands if id(each) not in overwritten)
        return is_held_where_read and not torch.cuda.is_current_stream_capturing()

    def _computed(
        self, changed: list[torch.Tensor], overwritten: set[int], *, fill: int | None = None
    ) -> tuple[list[torch.Tensor], Any] | None:
        """Return what the host computes: for each tensor that changes its values afterwards, and the result.

        None where it cannot. With ``fill`` it computes as if what changes had that value everywhere.
        """
        with OnHost():
            twins = {id(each): on_host(each) for each in self._operands if id(each) not in overwritten}
            for each in changed:
                if id(each) in overwritten or fill is not None:
                    twins[id(each)] = torch.full_like(each, fill or 0, device="cpu")
                else:
                    twins[id(each)] = twins[id(each)].clone()

            def given(argument: Any) -> Any:
                if isinstance(argument, torch.Tensor):
                    return twins.get(id(argument), argument)
                if isinstance(argument, torch.Generator):
                    return None
                return torch.device("cpu") if _is_card(argument) else argument

            kwargs = {name: _mapped(given, value) for name, value in self._kwargs.items() if name != "pin_memory"}
            try:
                with self._drawing():
                    result = self._operation.on_host(*_mapped(given, self._args), **kwargs)
            except _REFUSED:
                self.is_refused = True
                return None
            return [twins[id(each)] for each in changed], result

    def _filled(self, changed: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any] | None:
        """Return what the host computes of an operation that writes all of a tensor, whatever was there before."""
        is_filling = self._operation.name in _FILLING and len(changed) == 1 and is_plain(changed[0])
        others = [each for each in self._operands if is_filling and each is not changed[0]]
        if not is_filling or not is_few_integers(changed[0]) or not all(map(is_known, others)):
            return None
        over_zeros, over_ones = (self._computed(changed, set(), fill=fill) for fill in (0, 1))
        if over_zeros is None or over_ones is None or not torch.equal(over_zeros[0][0], over_ones[0][0]):
            return None
        return over_zeros

    def _drawing(self) -> AbstractContextManager[None]:
        """Draw random numbers by where the card's generator stands."""
        if not self._operation.draws:
            return nullcontext()
        given = [each for each in (*self._args, *self._kwargs.values()) if isinstance(each, torch.Generator)]
        return _drawing_like(given[0] if given else torch.cuda.default_generators[torch.cuda.current_device()])

    def _answers(self, expected: Any) -> list[bytes]:
        """Return what the operation reads back from the card while it runs, where its result is as ``expected``."""
        name, first = self._operation.name, self._args[0]
        if name in _COUNTED:
            count = self._count(expected)
            return [struct.pack("i", count), struct.pack("q", count)]
        if name == "repeat_interleave":  # before torch 2.12 it asks for the least repeat, and if it is negative
            least = on_host(first).min().reshape(1) if first.numel() else first.new_zeros(1, device="cpu")
            return [struct.pack("q", len(expected)), _as_bytes(least), struct.pack("?", True)]
        if name == "bincount" and first.numel():
            numbers = on_host(first)
            asked = [numbers.max()] if first.dtype is torch.uint8 else [numbers.min(), numbers.max()]
            return list(map(_as_bytes, asked))
        if name == "_linalg_check_errors":
            return [struct.pack("?", False)]  # the host did not raise
        return [struct.pack("?", expected)] if isinstance(expected, bool) else []

    def _count(self, expected: Any) -> int:
        """Return how many elements the operation finds."""
        if self._operation.name == "_unique2" and self._args[0].dtype is torch.bool:  # reads how many are true
            return int(on_host(self._args[0]).count_nonzero())
        if self._operation.name == "unique_dim":
            return int(expected[0].shape[self._args[1]])
        return len(expected if isinstance(expected, torch.Tensor) else expected[0])

    def _made(self, result: Any) -> list[torch.Tensor]:
        """Return the tensors of a result that the operation made."""
        before = set(map(number_of, filter(is_plain, self._operands)))
        return [each for each in _on_card((result,)) if is_plain(each) and number_of(each) not in before]

    def _write_result(self, made: list[torch.Tensor], result: Any, expected: Any) -> None:
        """Write what the host computed into the results that the operation made."""
        values = dict(zip(map(id, _flat(result)), _flat(expected), strict=False))
        for one in made:
            value = values.get(id(one), one)
            if value is None:
                hold(one)
            elif value is one or value.shape != one.shape or not _is_alike(value.dtype, one.dtype):
                unhold(one)
                self.is_refused |= self._operation.name not in ("_unique2", "unique_dim")  # make more than was asked
            else:
                write(one, value)

    def _deciding(self) -> list[torch.Tensor]:
        """Return the operands that are known, on the host."""
        with OnHost():
            known = [on_host(each).clone() for each in self._operands if is_known(each)]
        return known + [each for each in self._args if isinstance(each, torch.Tensor) and each.device.type == "cpu"]

    def _write_decided(self, known: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Let the card hold the result, if one of the operands that are known decides it."""
        if len(results) == 1 and is_followed(results[0]):
            with OnHost():
                decided = decided_by_one(self._operation.name, known, results[0])
                if decided is not None:
                    write(results[0], decided)


def _coalesce(run: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Run ``_coalesce``, which reads how many indices of a sparse tensor there are without repetitions."""
    indices = tensor._indices()
    if not is_known(indices):
        return run(tensor)  # type: ignore[no-any-return]
    with OnHost():
        expected = torch.unique(on_host(indices), dim=1)
    count = expected.shape[1]
    with Kept(), virtual.expecting(struct.pack("i", count), struct.pack("q", count)):
        result: torch.Tensor = run(tensor)
    with OnHost():
        write(result._indices(), expected)
    return result


def _search(run: Function, boundaries: torch.Tensor, number: float, **how: Any) -> torch.Tensor:
    """Search for a number as for a tensor: of a number torch makes one that it hands to no function of Python."""
    wanted = torch.scalar_tensor(number, dtype=boundaries.dtype, device=boundaries.device)
    return torch.ops.aten.searchsorted.Tensor(boundaries, wanted, **how)  # type: ignore[no-any-return]


def _bucketize(run: Function, number: float, boundaries: torch.Tensor, **how: Any) -> torch.Tensor:
    return _search(run, boundaries, number, **how)


_SEARCHED: Final[dict[str, Function]] = {"searchsorted.Scalar": _search, "bucketize.Scalar": _bucketize}


def _as_bytes(number: torch.Tensor) -> bytes:
    return bytes(number.reshape(1).view(torch.uint8).tolist())


def _is_card(device: Any) -> bool:
    return isinstance(device, (torch.device, str)) and str(device).startswith("cuda")


def _is_alike(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether numbers of one type can be written as another: the host keeps some in a narrower type, or a wider one."""
    return one == other or (one.is_floating_point and other.is_floating_point)


def _flat(values: Any) -> list[Any]:
    """Return what a value of an operation consists of: itself, or what is in a list of lists."""
    if not isinstance(values, (list, tuple)):
        return [values]
    return [each for value in values for each in (value if isinstance(value, (list, tuple)) else (value,))]


def _mapped(function: Function, value: Any) -> Any:
    """Return ``function`` of a value, or of what is in a list of lists. That of torch leaves reference cycles."""
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, each) for each in value])
    return function(value)


def _on_card(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors on the card among values and in lists of them."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _on_card(value)
    return found


def _returns_view(func: Any) -> bool:
    """Whether an operation returns a view, or changes what a tensor is a view of."""
    aliases = [each.alias_info for each in func._schema.returns if each.alias_info is not None]
    is_view = bool(aliases) and not any(each.is_write for each in aliases)
    return is_view or torch.Tag.inplace_view in func.tags


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
