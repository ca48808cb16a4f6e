"""Accounts for host memory that holds what came from the device: pageable and pinned bytes, each with its peak."""

from __future__ import annotations

import weakref
from functools import partial

import torch


class HostMemory:
    """Live and peak bytes of host storages."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, bool]] = {}
        self._bytes = {False: 0, True: 0}
        self._peak = {False: 0, True: 0}

    def adopt(self, storage: torch.UntypedStorage, *, pinned: bool = False) -> None:
        """Count a host storage that was just born; its death uncounts it."""
        key = storage._cdata
        if key in self._live:
            return
        nbytes = storage.nbytes()
        self._live[key] = (weakref.ref(storage, partial(self._died, key)), nbytes, pinned)
        self._bytes[pinned] += nbytes
        self._peak[pinned] = max(self._peak[pinned], self._bytes[pinned])

    def is_pinned(self, storage: torch.UntypedStorage) -> bool:
        """Say whether ``storage`` is pinned."""
        entry = self._live.get(storage._cdata)
        return entry is not None and entry[2]

    def _died(self, key: int, _: object) -> None:
        _, nbytes, pinned = self._live.pop(key)
        self._bytes[pinned] -= nbytes

    @property
    def peak_bytes(self) -> int:
        """Peak of pageable bytes."""
        return self._peak[False]

    @property
    def peak_pinned_bytes(self) -> int:
        """Peak of pinned bytes."""
        return self._peak[True]
