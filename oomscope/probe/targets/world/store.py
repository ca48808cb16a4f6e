"""A store in a world of one process: it answers what every rank would have written, and refuses to wait for others.

Every rank is taken to do what this one does: a counter has been raised by all of them. NCCL's communicators need an
identifier that rank 0 would have written; any will do. A key that only another rank can write is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import Store

from oomscope.probe.targets.world.peers import PeerNeededError

_OF_NCCL: Final = "cuda//"
"""How torch prefixes the keys of a group of cards (``_new_process_group_helper``)."""
_NCCL_ID: Final = bytes(128)
"""NCCL's unique id: 128 bytes."""


_kept: Final[list[PlayedStore]] = []
"""Groups hold the C++ side of a store only, which finds nothing to call once the Python side is gone."""


class PlayedStore(Store):
    """What the classes of stores become: it takes their arguments, and connects to nobody.

    Args:
        world_size: ranks that are taken to write what this one writes.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._world_size = world_size
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return the value of ``key``.

        Raises:
            PeerNeededError: another rank was to write it.
        """
        if key in self._counters:
            return str(self._counters[key]).encode()
        if key not in self._values and _OF_NCCL in key:
            return _NCCL_ID
        self._require([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Return the counter after every rank has added ``amount``."""
        self._counters[key] = self._counters.get(key, 0) + amount * self._world_size
        return self._counters[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether this rank has written all ``keys``. Nobody else has: NCCL's watchdog looks for calls for help."""
        return all(self._has(key) for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return where all ``keys`` are written.

        Raises:
            PeerNeededError: another rank was to write one of them.
        """
        self._require([key for key in keys if _OF_NCCL not in key])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write ``desired`` where the value is ``expected``, or where there is none; return the value."""
        now = self._values.get(key, b"")
        if now == (expected.encode() if isinstance(expected, str) else bytes(expected)):
            self.set(key, desired)
        return self._values.get(key, now)

    def append(self, key: str, value: str | bytes) -> None:
        """Write behind what is there."""
        more = value.encode() if isinstance(value, str) else bytes(value)
        self._values[key] = self._values.get(key, b"") + more

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def delete_key(self, key: str) -> bool:
        """Forget a key; return whether it was there."""
        was_there = self._has(key)
        self._values.pop(key, None)
        self._counters.pop(key, None)
        return was_there

    def num_keys(self) -> int:
        """Return how many keys there are."""
        return len(self._values.keys() | self._counters.keys())

    def has_extended_api(self) -> bool:
        """Whether ``append``, ``multi_get`` and ``multi_set`` are there."""
        return True

    def _has(self, key: str) -> bool:
        return key in self._values or key in self._counters

    def _require(self, keys: Sequence[str]) -> None:
        missing = next((key for key in keys if not self._has(key)), None)
        if missing is not None:
            raise PeerNeededError(f"the store's key {missing!r}, which another rank writes,")


def store_class(world_size: int) -> type[PlayedStore]:
    """Return the class that stands for TCPStore and FileStore in a world of ``world_size``."""

    class Played(PlayedStore):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(world_size)
            _kept.append(self)

    return Played
