"""Grow a trace one event at a time.

The recording side of a :class:`~oomscope.snapshot.trace.Trace`: columns are flat arrays that only ever grow at the
end, and what repeats (stacks, moments, modules, pools) is stored once and named by a small integer.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.trace import Action, Category, Frame, Moment, Stack, Trace

Item = TypeVar("Item", bound=Hashable)
Scalar = TypeVar("Scalar", bound=np.generic)

UNKNOWN_MOMENT: Final = Moment("", -1, -1)
DEFAULT_POOL: Final = (0, 0)


class Interned(Generic[Item]):
    """Distinct items in order of first sight; item 0 is the one that stands for "unknown"."""

    def __init__(self, unknown: Item) -> None:
        self._ids: dict[Item, int] = {unknown: 0}

    def id_of(self, item: Item) -> int:
        """Return the id of ``item``, a new one at first sight."""
        ids = self._ids
        return ids.setdefault(item, len(ids))

    def items(self) -> tuple[Item, ...]:
        """Return the distinct items; an item's id is its position."""
        return tuple(self._ids)


class TraceBuilder:
    """Collects one device's events, oldest first.

    Every interned argument of :meth:`event` may be given as the value itself or as the id that the matching
    ``intern_…`` method returned; the id skips hashing, which matters for deep stacks.

    Args:
        device: index of the device that the trace belongs to.
        missing: what the source does not record (see :attr:`Trace.missing`).
    """

    def __init__(self, device: int = 0, *, missing: tuple[str, ...] = ()) -> None:
        self.device = device
        self.missing = missing
        self._stacks: Interned[Stack] = Interned(())
        self._moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
        self._modules: Interned[str] = Interned("")
        self._pools: Interned[tuple[int, int]] = Interned(DEFAULT_POOL)
        self._action = array("b")
        self._address = array("Q")
        self._size = array("q")
        self._stream = array("q")
        self._time_us = array("q")
        self._stack = array("i")
        self._moment = array("i")
        self._category = array("b")
        self._module = array("i")
        self._forward_stack = array("i")
        self._pool = array("i")

    def __len__(self) -> int:
        return len(self._action)

    def stack(self, number: int) -> Stack:
        """Return the stack of number ``number``."""
        return self._stacks.items()[number]

    def event(  # noqa: PLR0917 - called once an allocation; keywords would double its cost
        self,
        action: Action,
        address: int,
        size: int,
        stream: int = 0,
        time_us: int = -1,
        stack: Stack | int = 0,
        moment: Moment | int = 0,
        category: Category = Category.UNKNOWN,
        module: str | int = 0,
        forward_stack: Stack | int = 0,
        pool: tuple[int, int] | int = 0,
    ) -> int:
        """Append one event and return its index.

        Args:
            action: what happened.
            address: address of the block or segment; for ``OOM`` the free device bytes, or ``FREE_UNKNOWN``.
            size: requested bytes in alloc, free and oom events; the segment's bytes in segment events.
            stream: handle of the stream; 0 is the default stream.
            time_us: microseconds; -1 where unknown.
            stack: Python stack, innermost frame first.
            moment: when in training.
            category: what the block is for.
            module: dotted path of the module that allocates.
            forward_stack: for an allocation made in backward, the stack of the forward operation behind it.
            pool: id of the memory pool; ``(0, 0)`` is the default.
        """
        self._action.append(action)
        self._address.append(address)
        self._size.append(size)
        self._stream.append(stream)
        self._time_us.append(time_us)
        self._stack.append(stack if isinstance(stack, int) else self._stacks.id_of(stack))
        self._moment.append(moment if isinstance(moment, int) else self._moments.id_of(moment))
        self._category.append(category)
        self._module.append(module if isinstance(module, int) else self._modules.id_of(module))
        self._forward_stack.append(
            forward_stack if isinstance(forward_stack, int) else self._stacks.id_of(forward_stack)
        )
        self._pool.append(pool if isinstance(pool, int) else self._pools.id_of(pool))
        return len(self._action) - 1

    def build(self) -> Trace:
        """Return the events so far as a trace; the builder may go on growing."""
        return Trace(
            device=self.device,
            action=_column(self._action, np.int8),
            address=_column(self._address, np.uint64),
            size=_column(self._size, np.int64),
            stream=_column(self._stream, np.int64),
            time_us=_column(self._time_us, np.int64),
            stack_id=_column(self._stack, np.int32),
            moment_id=_column(self._moment, np.int32),
            category=_column(self._category, np.int8),
            module_id=_column(self._module, np.int32),
            forward_stack_id=_column(self._forward_stack, np.int32),
            pool_id=_column(self._pool, np.int32),
            stacks=tuple(tuple(Frame(*frame) for frame in stack) for stack in self._stacks.items()),
            moments=self._moments.items(),
            modules=self._modules.items(),
            pools=self._pools.items(),
            names_pools=len(self._pools.items()) > 1,
            missing=self.missing,
        )


def _column(values: array[int], dtype: type[Scalar]) -> NDArray[Scalar]:
    """Return a copy, so that neither side sees what becomes of the other."""
    return np.array(values, dtype=dtype)
