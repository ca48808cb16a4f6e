"""Grow a trace one event at a time; what repeats (stacks, moments, modules, pools) is stored once."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.trace import UNKNOWN_MOMENT, Action, Category, Frame, Moment, Stack, Trace

Item = TypeVar("Item", bound=Hashable)

DEFAULT_POOL: Final = (0, 0)
_COLUMNS: Final = {
    "action": np.int8,
    "address": np.uint64,
    "size": np.int64,
    "stream": np.int64,
    "time_us": np.int64,
    "stack_id": np.int32,
    "moment_id": np.int32,
    "category": np.int8,
    "module_id": np.int32,
    "forward_stack_id": np.int32,
    "pool_id": np.int32,
}


class Interned(Generic[Item]):
    """Distinct items in order of first sight; item 0 is the one that stands for "unknown"."""

    def __init__(self, unknown: Item) -> None:
        self._ids: dict[Item, int] = {unknown: 0}

    def id_of(self, item: Item) -> int:
        """Return the id of ``item``, a new one at first sight."""
        return self._ids.setdefault(item, len(self._ids))

    def items(self) -> tuple[Item, ...]:
        """Return the distinct items; an item's id is its position."""
        return tuple(self._ids)


def counted(numbers: NDArray[np.integer]) -> tuple[list[int], NDArray[np.int64]]:
    """Return the distinct numbers, none negative or very large, and the position of each of ``numbers`` among them."""
    counts = np.bincount(numbers)
    used = np.flatnonzero(counts)
    position = np.zeros(len(counts), dtype=np.int64)
    position[used] = np.arange(len(used))
    return used.tolist(), position[numbers]


class TraceBuilder:
    """Collects one device's events, oldest first."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self._stacks: Interned[Stack] = Interned(())
        self._moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
        self._modules: Interned[str] = Interned("")
        self._pools: Interned[tuple[int, int]] = Interned(DEFAULT_POOL)
        self._columns = {name: array(np.dtype(dtype).char) for name, dtype in _COLUMNS.items()}

    def __len__(self) -> int:
        return len(self._columns["action"])

    def event(  # noqa: PLR0917 - one argument a column
        self,
        action: Action,
        address: int,
        size: int,
        stream: int = 0,
        time_us: int = -1,
        stack: Stack = (),
        moment: Moment = UNKNOWN_MOMENT,
        category: Category = Category.UNKNOWN,
        module: str = "",
        forward_stack: Stack = (),
        pool: tuple[int, int] = DEFAULT_POOL,
    ) -> int:
        """Append one event, in the terms of :class:`Trace`, and return its index."""
        stacks = self._stacks
        ids = stacks.id_of(stack), self._moments.id_of(moment), category, self._modules.id_of(module)
        values = action, address, size, stream, time_us, *ids, stacks.id_of(forward_stack), self._pools.id_of(pool)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        return len(self) - 1

    def build(self) -> Trace:
        """Return the events so far as a trace; the builder may go on growing."""
        pools = self._pools.items()
        columns: dict[str, Any] = {name: np.array(self._columns[name], dtype=dtype) for name, dtype in _COLUMNS.items()}
        return Trace(
            device=self.device,
            **columns,
            stacks=tuple(tuple(Frame(*frame) for frame in stack) for stack in self._stacks.items()),
            moments=self._moments.items(),
            modules=self._modules.items(),
            pools=pools,
            names_pools=len(pools) > 1,
        )
