"""One call of an operation: on the card as it is, and on the host where its operands are known."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch

from oomscope import virtual
from oomscope.probe.recording.values.card_bytes import (
    PreserveHeld,
    ends_of,
    hold,
    is_held,
    is_plain,
    on_host,
    parts_of,
    unhold,
    unhold_new,
    write,
)
from oomscope.probe.recording.values.counts import COUNTED, counted_dim, counts, most_counted, unknown_counts
from oomscope.probe.recording.values.decisive_operands import decided_by_one, is_decisive
from oomscope.probe.recording.values.followed import (
    MOST_ELEMENTS,
    is_few_drawn,
    is_few_integers,
    is_followed,
    is_known,
    is_left_alone,
)
from oomscope.probe.recording.values.kernels_on_host import KERNELS
from oomscope.probe.recording.values.operations import Function, OnHost
from oomscope.probe.recording.values.storages import number_of

COPY: Final = "copy_"
_FILLING: Final = frozenset(("scatter", "scatter_", "index_copy", "index_copy_", "_index_put_impl_"))
"""Operations that write parts of a tensor, or with the right indices all of it."""
_OVERWRITTEN: Final = frozenset(
    (COPY, "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_")
)
"""Operations that read nothing of the tensor that they change."""
_RUNNING: Final = ("running_mean", "running_var")
"""Arguments that operations change, though their schemas do not say so."""
_READING: Final = COUNTED | {"bincount", "repeat_interleave", "_linalg_check_errors", "equal"}
"""Operations that read something from the card."""
_HEAVY: Final = ("conv", "cudnn_", "_conv", "slow_conv", "_scaled_dot_product", "_eff", "_fl")
"""Prefixes of operations that take long on the host, and whose results decide nothing."""
_PRODUCTS: Final = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1}
"""Products of two matrices, such as of neighbours in a graph, and the place of the first matrix among the operands."""
_MOST_PRODUCTS: Final = 10_000_000
"""Multiplications of a product that is followed: some milliseconds of the host."""
_DRAWN: Final = frozenset(("random_.from", "random_.to", "randperm.generator_out"))
"""Operations that draw integers within bounds: few of them are followed, as draws of the host are."""
_TRUSTED: Final = frozenset(("aten", "torchvision"))
"""Namespaces of operations whose schemas say what they change."""
_REFUSED: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""Errors of operations on the host that only the card supports."""


class Operation:
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
        """Whether it reads nothing of the arguments that it changes."""
        takes_generator = any("Generator" in str(each.type) for _, each in arguments)
        self.draws = takes_generator or torch.Tag.nondeterministic_seeded in func.tags
        """Whether it draws random numbers."""
        self.makes_new = any(each.alias_info is None for each in func._schema.returns)
        """Whether it returns new tensors."""
        self.on_host: Function = KERNELS.get(self.name, func)
        self._is_special = self.name == COPY or is_decisive(self.name)
        is_drawn = str(func).removeprefix("aten.") in _DRAWN
        if is_drawn and is_small is not None:
            self.is_small = is_few_drawn
        is_left_alone = (self.draws and not is_drawn) or self.name.startswith(_HEAVY)
        self._is_left_alone = is_small is not None and is_left_alone
        self._reads_only = func.namespace in _TRUSTED

    def kept(self, written: list[torch.Tensor]) -> AbstractContextManager[object]:
        """Keep what the card holds while the kernel runs, but for what it writes.

        Schemas of others do not always say what their operations change: after those the card knows less.
        """
        if self._reads_only:
            return PreserveHeld(written)
        for each in written:
            unhold(each)
        return nullcontext()

    def changes_host(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether it changes a tensor of the host, which the program's own call does."""
        changed = _flat(list(self.changed_of(args, kwargs)))
        return any(isinstance(each, torch.Tensor) and not each.is_cuda for each in changed)

    def is_certainly_unknown(self, operands: Sequence[torch.Tensor]) -> bool:
        """Whether the operands show that the host does not compute the operation."""
        if self.is_small is None or self._is_special:
            return False
        return self._is_left_alone or any(map(is_left_alone, operands)) or self._is_large_product(operands)

    def _is_large_product(self, operands: Sequence[torch.Tensor]) -> bool:
        """Whether it multiplies matrices, more than the host does in a moment."""
        place = _PRODUCTS.get(self.name)
        if place is None or len(operands) < place + 2:
            return False
        return operands[place].numel() * operands[place + 1].shape[-1] > _MOST_PRODUCTS

    def changed_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the arguments that it changes."""
        return [args[index] if index < len(args) else kwargs.get(name) for index, name in self.changing]

    def answered(self, args: tuple[Any, ...], answers: Sequence[bytes] | None) -> AbstractContextManager[None]:
        """Answer what the operation reads from the card while its kernel runs.

        Args:
            args: of the operation.
            answers: what it reads; None where nobody knows. The answer of the operation that calls it stands then.
        """
        if answers is None and self.name in COUNTED and not virtual.is_expecting():
            answers = unknown_counts(args[0], most_counted(self.name, args))
        return virtual.expecting(*answers) if answers else nullcontext()

    def _writes(self, argument: Any) -> bool:
        """Whether the operation changes an argument, also where its schema does not say so (normalisation by batch)."""
        is_undeclared = argument.name in _RUNNING and "backward" not in self.name
        return is_undeclared or (argument.alias_info is not None and argument.alias_info.is_write)


class Call:
    """One call of an operation, and its operands on the card."""

    def __init__(
        self,
        operation: Operation,
        kernel: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
    ) -> None:
        self._operation, self._kernel, self._args, self._kwargs = operation, kernel, args, kwargs
        self._operands = operands
        self.is_refused = False
        """Whether the host could not compute it, though the operands are known."""

    def run(self, *, is_outermost: bool) -> Any:
        """Return what the operation returns."""
        operation = self._operation
        changed, overwritten = self._what_changes()
        is_known = self._is_known(overwritten)
        if operation.name == COPY and not (is_known and self._args[0].is_cuda and self._args[1].is_cuda):
            return self._copied()
        if operation.name == "zero_" and is_known:
            return self._zeroed(is_by_program=is_outermost)
        deciding = self._deciding() if not is_known and is_decisive(operation.name) else []
        reads_changed = any(id(each) not in overwritten for each in changed)
        is_first = is_known and (reads_changed or operation.name in _READING)
        computed = self._computed(changed, overwritten) if is_first else self._filled(changed)
        known_answers = self._answers(computed[1]) if computed is not None and operation.name in _READING else None
        with operation.kept(changed), operation.answered(self._args, known_answers):
            result = self._kernel(*self._args, **self._kwargs)
        parts = parts_of_result(result)
        made = made_of(parts, self._operands)
        for each in made:
            unhold_new(each)
        if is_known and not is_first and self._are_small((*made, *changed)):  # what an operation resized is large now
            computed = self._computed(changed, overwritten)
        if computed is not None:
            with OnHost():
                for each, values in zip(changed, computed[0], strict=True):
                    write(each, values)
                self._write_result(made, parts, computed[1])
            return result
        if deciding:
            self._write_decided(deciding, changed or made)
        return result

    def _copied(self) -> Any:
        """Copy as the card does it: it holds what came from the host in a small copy, and copies of what it holds."""
        to, source = self._args[:2]
        is_apart = not (is_plain(source) and is_plain(to) and number_of(source) == number_of(to))
        if is_apart:
            unhold(to)
        is_followed_so = source.is_cuda and not (self._operation.is_small and is_left_alone(source))
        was_held = is_followed_so and is_held(source)
        result = self._kernel(*self._args, **self._kwargs)
        if was_held:
            hold(source)
        if not is_apart:
            unhold(to)
        is_small = self._operation.is_small
        if source.device.type == "cpu" and is_plain(to) and (is_small is None or is_small(to)) and not is_held(to):
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
        """Return the operands that the operation changes, and the ids of those that it does not read."""
        operation = self._operation
        changed = on_card(operation.changed_of(self._args, self._kwargs))
        if not changed or not operation.overwrites:
            return changed, set()
        places = [ends_of(each) for each in self._operands if is_plain(each)]

        def is_alone(tensor: torch.Tensor) -> bool:
            """Whether no other operand lies where this one does: ``x.ge_(y)`` is ``ge(x, y, out=x)``."""
            first, last = ends_of(tensor)
            return sum(start < last and first < end for start, end in places) <= 1

        return changed, {id(each) for each in changed if is_plain(each) and is_alone(each)}

    def _is_known(self, overwritten: set[int]) -> bool:
        """Whether the host can compute the operation: all operands are known, and few where few are followed."""
        operation = self._operation
        if operation.is_certainly_unknown(self._operands) or operation.changes_host(self._args, self._kwargs):
            return False
        if not self._are_small(self._operands):
            return False
        is_held_where_read = all(is_held(each) for each in self._operands if id(each) not in overwritten)
        return is_held_where_read and not torch.cuda.is_current_stream_capturing() and self._is_result_small()

    def _is_result_small(self) -> bool:
        """Whether what an operation counts together is few, where few are followed."""
        name = self._operation.name
        if self._operation.is_small is None or name not in ("repeat_interleave", "bincount") or not self._operands:
            return True
        numbers = on_host(self._operands[0])
        count = numbers.sum() if name == "repeat_interleave" else numbers.max() if numbers.numel() else 0
        return int(count) <= MOST_ELEMENTS

    def _are_small(self, results: Iterable[torch.Tensor]) -> bool:
        """Whether results are few, where few are followed."""
        is_small = self._operation.is_small
        return is_small is None or all(map(is_small, results))

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
        is_filling = is_filling and not torch.cuda.is_current_stream_capturing()
        others = [each for each in self._operands if is_filling and each is not changed[0]]
        if not is_filling or not is_few_integers(changed[0]) or not all(map(is_known, others)):
            return None
        over_zeros, over_ones = (self._computed(changed, set(), fill=fill) for fill in (0, 1))
        if over_zeros is None or over_ones is None or not torch.equal(over_zeros[0][0], over_ones[0][0]):
            return None
        return over_zeros

    def _drawing(self) -> AbstractContextManager[None]:
        """Draw random numbers from the state of the card's generator."""
        if not self._operation.draws:
            return nullcontext()
        given = [each for each in (*self._args, *self._kwargs.values()) if isinstance(each, torch.Generator)]
        devices = [each.device for each in self._operands]
        devices += [torch.device(each) for each in self._kwargs.values() if _is_card(each)]
        index = next((each.index for each in devices if each.index is not None), torch.cuda.current_device())
        return _drawing_like(given[0] if given else torch.cuda.default_generators[index])

    def _answers(self, expected: Any) -> list[bytes]:
        """Return what the operation reads back from the card while it runs, where its result is as ``expected``."""
        name, first = self._operation.name, self._args[0]
        if name in COUNTED:
            return counts(self._count(expected))
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
        found = expected if isinstance(expected, torch.Tensor) else expected[0]
        return int(found.shape[counted_dim(self._operation.name, self._args) or 0])

    def _write_result(self, made: list[torch.Tensor], parts: list[Any], expected: Any) -> None:
        """Write what the host computed into the results that the operation made."""
        values = dict(zip(map(id, parts), parts_of_result(expected), strict=False))
        for one in made:
            value = values.get(id(one), one)
            if not self._are_small((one,)):
                continue
            if value is None:
                hold(one)
            elif value is one or value.shape != one.shape or not _is_alike(value.dtype, one.dtype):
                unhold(one)
                self.is_refused |= self._operation.name not in ("_unique2", "unique_dim")  # they make more than asked
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


def parts_of_result(result: Any) -> list[Any]:
    """Return what a result consists of; of tensors that are sparse or nested, their parts."""
    return [part for each in _flat(result) for part in (parts_of(each) if isinstance(each, torch.Tensor) else [each])]


def made_of(parts: list[Any], operands: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parts of a result that an operation made: the indices of a sparse gradient may be an operand's."""
    before = set(map(number_of, filter(is_plain, operands)))
    return [each for each in parts if is_plain(each) and number_of(each) not in before]


def _mapped(function: Function, value: Any) -> Any:
    """Return ``function`` of a value, or of what is in a list of lists. That of torch leaves reference cycles."""
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, each) for each in value])
    return function(value)


def on_card(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors on the card among values and in lists of them."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += on_card(value)
    return found


@contextmanager
def _drawing_like(generator: torch.Generator) -> Iterator[None]:
    """Draw from the host's generator as if it were this one of the card, and restore its state afterwards.

    What is computed again from the same state, as by checkpoints, draws the same.
    """
    before = torch.default_generator.get_state()
    place = generator.get_offset() if generator.device.type == "cuda" else 0
    torch.default_generator.manual_seed(hash((generator.initial_seed(), place)) & (2**63 - 1))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
