"""Values that the host computes for a virtual card, whose kernels compute nothing.

An operation runs on the card as it is. If the card holds all operands, the host computes the same, and its result is
written where the card put its own. So sizes that depend on values (``x[mask]``, ``nonzero``, ``unique``) are those of a
real run. Otherwise what an operation returns is unknown, and so is what follows from it: the card counts what is read
of it. Unknown is also what kernels write that no operation of torch starts: Triton's, those of extensions and of
replayed graphs.

**Followed:** small tensors of integers and booleans, and a few numbers. Models ask them what to do next: are the
positions those of one sequence, does the mask hide anything. Other numbers are many, and sizes seldom depend on them:
what requires a gradient is left alone, and so is what is drawn at random, but for a few integers.

**Computed:** everything, on a card with ``CardSettings.is_computed``. It takes as long as the program does on the host,
and as much of the host's memory as the program uses of the card.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch

from oomscope import virtual
from oomscope.probe.recording.replaced import Place, replaced
from oomscope.probe.recording.values.calls import COPY, Call, Operation, made_of, on_card, parts_of_result
from oomscope.probe.recording.values.card_bytes import (
    PreserveHeld,
    hold,
    is_held,
    on_host,
    shares_memory,
    unhold,
    unhold_new,
    write,
)
from oomscope.probe.recording.values.counts import counts, unknown_counts
from oomscope.probe.recording.values.followed import is_followed, is_known
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

_EMPTY: Final = frozenset(("empty", "empty_strided"))
"""Operations whose result has no values yet."""
_COMPILED_EMPTY: Final = "_empty_strided_cuda"
"""The function of ``torch._C._dynamo.guards`` by which compiled code allocates: no operation that is dispatched."""
_NOT_REPLACED: Final = frozenset(("set_", "resize_", "record_stream", "_local_scalar_dense"))
"""Operations that change no value."""
_GIVEN_A_NUMBER: Final = "aten::pow.Tensor_Tensor_out"
"""Operation with the 2 of 2 ** x on the card, which torch hides from functions of Python. Its caller is replaced."""
_NAMESPACES_OF_OTHERS: Final = frozenset(("c10d", "symm_mem", "fsdp"))
"""Namespaces of operations that exchange values with other processes."""
_NUMBERS: Final = frozenset((int, float, bool, complex))


def values_are_followed() -> AbstractContextManager[None]:
    """Follow few values while the block runs."""
    return _known_values(is_followed, None)


def values_are_computed(refused: dict[str, None]) -> AbstractContextManager[None]:
    """Compute all values while the block runs.

    Args:
        refused: gets the names of operations that the host cannot compute.
    """
    return _known_values(None, refused)


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
        places: list[Place] = [(torch.ops, "load_library", loaded), *_compiled_allocations()]
        with replaced(places), others[0], others[1]:
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
        names = (names_on(CARD) | {f"aten::{COPY}"}) - self._seen
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
            operation = Operation(func, self._is_small)
            if operation.name not in (*_NOT_REPLACED, *_EMPTY):
                ours[name] = partial(_run, operation, self._thread, self._refused)
            elif operation.name in _EMPTY:
                ours[name] = partial(_empty, self._thread if self._is_small is None else None)
        replace(self._libraries, ours)


class _Thread(threading.local):
    """How deep a thread is in operations that call operations."""

    depth = 0


def _run(
    operation: Operation, thread: _Thread, refused: dict[str, None], kernel: Function, *args: Any, **kwargs: Any
) -> Any:
    """Run an operation on the card, and on the host where its operands are known."""
    for index in operation.tensors:
        if index < len(args) and type(args[index]) in _NUMBERS:
            args = _with_tensors(args, operation.tensors)  # torch gives a number as such that x + 1 has made a tensor
            break
    operands = on_card((*args, *kwargs.values()) if kwargs else args)
    thread.depth += 1
    try:
        if operation.is_certainly_unknown(operands):
            return _run_unknown(operation, kernel, args, kwargs, operands)
        call = Call(operation, kernel, args, kwargs, operands)
        result = call.run(is_outermost=thread.depth == 1)
    finally:
        thread.depth -= 1
    if call.is_refused and thread.depth == 0 and (operation.changing or on_card((result,))):
        refused[str(operation.func)] = None
    return result


def _run_unknown(
    operation: Operation, kernel: Function, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[torch.Tensor]
) -> Any:
    """Run an operation on the card alone: what it returns and changes is unknown afterwards."""
    written = on_card(operation.changed_of(args, kwargs)) if operation.changing else []
    with operation.kept(written), operation.answered(args, None):
        result = kernel(*args, **kwargs)
    if operation.makes_new:
        for each in made_of(parts_of_result(result), operands):
            unhold_new(each)
    return result


def _empty(computing: _Thread | None, kernel: Function, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Allocate a tensor without values, at a place that may have had others.

    On a thread where all is computed, a program writes before it reads, so that its tensors count as held. What an
    operation allocates for itself is unknown: kernels that are not seen write there.
    """
    result: torch.Tensor = kernel(*args, **kwargs)
    unhold_new(result)
    if computing is not None and not computing.depth:
        hold(result)
    return result


def _compiled_allocations() -> list[Place]:
    """Return what allocates in code that inductor writes, and ours in place of it."""
    guards = torch._C._dynamo.guards
    allocate: Any = getattr(guards, _COMPILED_EMPTY, None)

    def allocated(*how: Any) -> torch.Tensor:
        result: torch.Tensor = allocate(*how)
        unhold_new(result)
        return result

    return [] if allocate is None else [(guards, _COMPILED_EMPTY, allocated)]


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


def _coalesce(run: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Run ``_coalesce``, which reads how many indices of a sparse tensor there are without repetitions."""
    indices, values = tensor._indices(), tensor._values()
    if not is_known(indices):
        with virtual.expecting(*unknown_counts(indices, tensor._nnz())):
            return run(tensor)  # type: ignore[no-any-return]
    knows_values = is_held(values) if shares_memory() else is_known(values)
    with OnHost():
        given = on_host(values) if knows_values else torch.zeros(values.shape, device="cpu")
        how: dict[str, Any] = {"device": "cpu", "check_invariants": False}
        expected = torch.sparse_coo_tensor(on_host(indices), given, tensor.shape, **how).coalesce()
    with PreserveHeld([]), virtual.expecting(*counts(expected._nnz())):
        result: torch.Tensor = run(tensor)
    with OnHost():
        write(result._indices(), expected._indices())
        write(result._values(), expected._values()) if knows_values else unhold(result._values())
    return result


def _search(run: Function, boundaries: torch.Tensor, number: float, **how: Any) -> torch.Tensor:
    """Search for a number as for a tensor: of a number torch makes one that it hands to no function of Python."""
    wanted = torch.scalar_tensor(number, dtype=boundaries.dtype, device=boundaries.device)
    return torch.ops.aten.searchsorted.Tensor(boundaries, wanted, **how)  # type: ignore[no-any-return]


def _bucketize(run: Function, number: float, boundaries: torch.Tensor, **how: Any) -> torch.Tensor:
    return _search(run, boundaries, number, **how)


_SEARCHED: Final[dict[str, Function]] = {"searchsorted.Scalar": _search, "bucketize.Scalar": _bucketize}
