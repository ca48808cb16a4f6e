"""Grow a trace one event at a time; what repeats (stacks, moments, modules, pools) is stored once."""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np

from oomscope.snapshot.interned import Interned
from oomscope.snapshot.trace import DEFAULT_POOL, UNKNOWN_MOMENT, Action, Category, Frame, Moment, Stack, Trace

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

    def event(
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
