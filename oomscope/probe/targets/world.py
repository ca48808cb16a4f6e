"""Makes this process one rank of a world, played alone: torch.distributed finds its world in it.

NCCL's stand-in answers as if every rank held what this one holds. Here is what PyTorch needs besides: a store that
answers what every rank would have written, the groups of the host's tensors, and the refusal, by name, of what only a
peer could answer.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, Store
from torch.distributed import distributed_c10d as c10d

from oomscope.probe.analysis.failures import remarks

_REAL_WORLD: Final = "oomscope probe -- torchrun --nproc-per-node N PROGRAM"
_REMEDY: Final = f"a small real world has one: {_REAL_WORLD}"
_SHAPES: Final = "; or give the shapes to each stage (input_args and output_args of PipelineStage)"
_PIPELINING: Final = "torch/distributed/pipelining"
_SOURCE_OF: Final = {"broadcast_object_list": 1, "scatter_object_list": 2}
"""Calls that need the source's objects, and the position of the source among their arguments."""
_GATHERING: Final = ("all_gather_object", "gather_object")
"""Calls that give every rank's objects."""
_OF_NCCL: Final = "cuda//"
"""Prefix of torch for the keys of a group of cards (``_new_process_group_helper``)."""
_NCCL_ID: Final = bytes(128)
"""NCCL's unique id, which rank 0 would have written; any value works."""
_kept: Final[list[PlayedStore]] = []
"""Stores kept alive: groups hold the C++ side alone, which has nothing to call once the Python side is gone."""


def play_one_rank(world_size: int) -> None:
    """Let torch.distributed begin a world of ``world_size`` in this process alone; torch has just been imported."""

    class Played(PlayedStore):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(world_size)
            _kept.append(self)

    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of this name
    for module in (dist, c10d, rendezvous):
        for name in ("TCPStore", "FileStore"):
            if hasattr(module, name):
                setattr(module, name, Played)
    c10d.ProcessGroupGloo = _PlayedHostGroup  # type: ignore[misc]
    # DDP's logger treats a group named "gloo" as Gloo's, and reads its devices from elsewhere.
    dist.Logger.set_construction_data_and_log = _nothing  # type: ignore[attr-defined,method-assign]
    for name in _SOURCE_OF:
        _wrap(name, functools.partial(_own_source_only, name))
    for name in _GATHERING:
        _wrap(name, functools.partial(_remarked, name))
    _wrap("recv_object_list", _refused)
    _wrap("monitored_barrier", _nothing)
    _wrap("init_process_group", _without_device)
    _wrap("gather", _repeated)
    _wrap("broadcast", _kept_own)


class PeerNeededError(RuntimeError):
    """A call needs another rank, and this process plays one rank alone.

    Args:
        what: the call, as the subject of the sentence.
        remedy: what else helps, behind a real world.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what} needs another rank, but one rank is played alone: {_REMEDY}{remedy}")


class PlayedStore(Store):
    """Replaces the store classes of torch.distributed; it connects to no other process.

    Every rank is taken to do what this one does: a counter has been raised by all of them. A key that only another rank
    can write is refused by name.

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


class _PlayedHostGroup:
    """Replaces ProcessGroupGloo; making one gives torch's group without peers."""

    def __new__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        options = FakeProcessGroup.Options()
        if hasattr(options, "simulate_uniform_ranks"):  # since torch 2.15: sums as of equal ranks
            options.simulate_uniform_ranks = True
        return FakeProcessGroup._create_internal(rank, size, options)


def _wrap(name: str, replacement: Callable[..., Any]) -> None:
    """Have ``replacement`` called, with the function and its arguments, for a function of torch.distributed."""
    function = getattr(c10d, name)
    wrapped = functools.wraps(function)(functools.partial(replacement, function))
    for place, module in list(sys.modules.items()):
        if place.startswith("torch.distributed") and getattr(module, name, None) is function:
            setattr(module, name, wrapped)


def _nothing(*args: object, **kwargs: object) -> None:
    """Return at once."""


def _without_device(begin: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Leave the world unbound to a device: torch would split its communicator, and only peers know who joins which."""
    begin(*args, **kwargs)
    c10d._get_default_group().bound_device_id = None


def _repeated(gather: Callable[..., Any], tensor: Any, gather_list: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Fill each slot of a gather on this rank: torch receives them one by one, as if they could differ."""
    work = gather(tensor, gather_list, *args, **kwargs)
    for slot in gather_list or ():
        slot.copy_(tensor)
    return work


def _refused(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _PIPELINING in sys._getframe(1).f_code.co_filename:
        raise PeerNeededError("pipelining's inference of shapes (recv_object_list)", _SHAPES)
    raise PeerNeededError("recv_object_list")


def _remarked(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function``, and let a failure after it say whose objects it gave."""
    _remark(f"every rank's objects were this one's ({name})")
    return function(*args, **kwargs)


def _remark(given: str) -> None:
    """Let a failure from now on say what a collective gave in place of others' data."""
    remark = f"{given}, which may be why; a small real world has theirs: {_REAL_WORLD}"
    remarks[:] = dict.fromkeys((*remarks, remark))


def _kept_own(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``broadcast``, and let a failure after one from another rank say that this rank's data was left."""
    source = _other_source(1, args, kwargs)
    if source is not None:
        _remark(f"what rank {source} would have sent was this rank's own (broadcast)")
    return function(*args, **kwargs)


def _own_source_only(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` for objects that this rank has."""
    source = _other_source(_SOURCE_OF[name], args, kwargs)
    if source is not None:
        raise PeerNeededError(f"{name} from rank {source}")
    return function(*args, **kwargs)


def _other_source(position: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the rank that a call names as its source, by the argument ``src`` or ``group_src``; None for this one."""
    group = kwargs.get("group") or (args[position + 1] if len(args) > position + 1 else None)
    source = args[position] if len(args) > position else kwargs.get("src")
    in_group = kwargs.get("group_src")
    own = dist.get_rank() if in_group is None else dist.get_rank(group)
    asked = in_group if in_group is not None else source or 0
    return None if asked == own else int(asked)
