"""The history that torch's CUDA allocator keeps of itself: started, marked, read, and observed at a failure.

There is one history a process, and torch never lets go of an observer; so one observer serves all who listen. All of
torch's private names for it are used here and nowhere else.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from oomscope.capture.settings import Stacks
from oomscope.snapshot.provenance import Refused

Listener = Callable[[Refused], None]


class RefusalObserver:
    """The one observer that torch is given; passes each refused request on to the present listeners.

    An exception that leaves an observer takes the place of the OutOfMemoryError
    (PyTorch, torch/csrc/cuda/Module.cpp, ``THCPModule_attachOutOfMemoryObserver``); listeners must not raise.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._attached = False

    def __call__(self, device: int, requested: int, _allowed: int, free: int) -> None:
        """Take torch's call; it comes at the failing allocation, with nothing unwound and no lock held."""
        for listener in tuple(self._listeners):
            listener(Refused(device=device, requested_bytes=requested, free_bytes=free))

    @contextmanager
    def notifying(self, listener: Listener) -> Iterator[None]:
        """Call ``listener`` at every refused request while the block runs."""
        if not self._attached:
            torch._C._cuda_attach_out_of_memory_observer(self)  # type: ignore[attr-defined]
            self._attached = True
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


refusals = RefusalObserver()


def start(*, max_entries: int, stacks: Stacks = "python") -> None:
    """Record every event from now on, the newest ``max_entries`` of them, forgetting what was recorded before.

    Stacks are kept of allocations, not of frees. C++ frames (``all``) cost minutes when the history is read:
    461 s against 4 s with ``python`` (pytorch/torchtitan, pull request 3628).
    """
    record = torch.cuda.memory._record_memory_history
    forgets = {"clear_history": True} if "clear_history" in inspect.signature(record).parameters else {}
    record(
        "all",
        context=None if stacks == "none" else "alloc",
        stacks="all" if stacks == "all" else "python",
        max_entries=max_entries,
        **forgets,  # torch 2.7 and later
    )


def stop() -> None:
    """Record no more."""
    torch.cuda.memory._record_memory_history(None)


def is_recording() -> bool:
    """Return whether this process is recorded, by oomscope or by the program itself.

    Before CUDA is used nobody does, and torch ends by a segmentation fault when it is asked.
    """
    return torch.cuda.is_initialized() and bool(torch._C._cuda_isHistoryEnabled())


def document() -> dict[str, Any]:
    """Return segments, blocks and events of all devices as plain values, in torch's own schema.

    torch asks its compiler whether a frame lies in generated code, and imports it to ask
    (torch/csrc/profiler/python/combined_traceback.cpp, ``appendSymbolized``). Where nothing has imported it, nothing
    was generated: it is given an empty stand-in, which saves seconds and host memory in a process that may be failing.
    """
    no_code = SimpleNamespace()
    if "torch._inductor" not in sys.modules:
        torch._inductor = no_code  # type: ignore[assignment]
    try:
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    finally:
        if vars(torch).get("_inductor") is no_code:
            del torch._inductor
    return snapshot


def can_mark() -> bool:
    """Return whether this torch lets a program mark its events."""
    return hasattr(torch._C, "_cuda_setMemoryMetadata")


def mark(text: str) -> None:
    """Let every following event on the current device carry ``text`` (``user_metadata``, torch 2.10 and later)."""
    torch.cuda.memory._set_memory_metadata(text)


def marked() -> str:
    """Return the text that events carry now."""
    return str(torch.cuda.memory._get_memory_metadata())


def blocks_moved(device: int) -> tuple[int, int]:
    """Return how many blocks the allocator of ``device`` has handed out and was given back; 0 before CUDA is used."""
    stats = torch._C._cuda_memoryStats(device) if torch.cuda.is_initialized() else {}
    blocks = stats["allocation"]["all"] if stats else {"allocated": 0, "freed": 0}
    return int(blocks["allocated"]), int(blocks["freed"])


def memory_fraction(device: int) -> float:
    """Return the fraction of the card that the process may use; 1 also where torch does not report it (before 2.6)."""
    tells = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(tells(device)) if tells else 1.0


def pinned_peak() -> int:
    """Return the most bytes of pinned host memory; 0 where torch reports none (before 2.7)."""
    tells = getattr(torch.cuda, "host_memory_stats", None)
    return int(tells().get("allocated_bytes.peak", 0)) if tells else 0


def workspace_sizes() -> frozenset[int]:
    """Return the bytes of the workspaces that torch gives to cuBLAS and cuBLASLt; empty where it reports none."""
    names = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
    return frozenset(int(getattr(torch._C, name)()) for name in names if hasattr(torch._C, name)) - {0}
