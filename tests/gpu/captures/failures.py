"""One failed allocation of each kind, made on purpose under a memory fraction, and the cure that its verdict names.

Each program runs under the default settings and under those that may cure it. It reports whether the last request
was served, and whether the very same request is served when it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.gpu.captures import history

MiB = 1 << 20
SPIN_CYCLES = 4_000_000_000
LIMIT = 4096 * MiB

Request = Callable[[], torch.Tensor]
Held = list[Any]


def capacity() -> tuple[Held, Request]:
    """More requested bytes than the limit: no packing could serve it."""
    held = [block(256) for _ in range(14)]
    return held, lambda: block(1024)


def interleaved() -> tuple[Held, Request]:
    """Every second block of 64 MiB of one segment is free: half of the limit, in pieces of several whole pages."""
    whole = block(LIMIT // MiB - 128)
    del whole
    blocks = [block(64) for _ in range(LIMIT // (64 * MiB) - 2)]
    held = blocks[::2]
    del blocks
    return held, lambda: block(1024)


def pinned_pages() -> tuple[Held, Request]:
    """Half of each page of 2 MiB is alive: mapping pages elsewhere frees nothing."""
    large = block(3072)
    blocks = [block(1) for _ in range(LIMIT // MiB - 3072 - 64)]
    held = [large, *blocks[::2]]
    del blocks
    return held, lambda: block(400)


def other_stream() -> tuple[Held, Request]:
    """The free bytes are whole segments of another stream, which are given back before the request fails."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        blocks = [block(size) for _ in range(7) for size in (448, 32)]
    held = [stream, *blocks[1::2]]
    del blocks
    return held, lambda: block(1024)


def split_other_stream() -> tuple[Held, Request]:
    """The free bytes lie in segments of another stream, each of 20 MiB and pinned by a block that is alive."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        blocks = [block(size) for _ in range(200) for size in (9, 9, 2)]
    held = [stream, *blocks[2::3]]
    del blocks
    return held, lambda: block(1024)


def pending_frees() -> tuple[Held, Request]:
    """The free bytes wait for a busy stream; the failed request itself waits for them, and would be served next."""
    stream = torch.cuda.Stream()
    whole = block(3584)
    del whole
    pinned, waiting = block(512), block(2560)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SPIN_CYCLES)
    waiting.record_stream(stream)
    del waiting
    return [stream, pinned], lambda: block(2560)


PROGRAMS: dict[str, Callable[[], tuple[Held, Request]]] = {
    "capacity": capacity,
    "interleaved": interleaved,
    "pinned-pages": pinned_pages,
    "other-stream": other_stream,
    "split-other-stream": split_other_stream,
    "pending-frees": pending_frees,
}
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64")
"""What the verdict on the first names as its cures is tried with the others."""


def items() -> list[dict[str, Any]]:
    """Return what is captured: each program under each setting."""
    return [
        {"name": name, "conf": conf, "file": f"oom-{name}-{history.short(conf)}.pickle.gz"}
        for name in PROGRAMS
        for conf in SETTINGS
    ]


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one program, write the observer's snapshot if it failed, and return what happened."""
    torch.cuda.init()
    total = torch.cuda.get_device_properties(0).total_memory
    fraction = LIMIT / total
    torch.cuda.set_per_process_memory_fraction(fraction)
    path = Path(spec["folder"]) / spec["file"]
    seen: list[dict[str, int]] = []
    not_saved: list[str] = []

    def observe(device: int, alloc: int, device_total: int, device_free: int) -> None:
        seen.append({"device": device, "alloc": alloc, "total": device_total, "free": device_free})
        if len(seen) > 1:
            return
        try:
            history.save(path)
        except Exception as error:  # noqa: BLE001 # what leaves an observer takes the place of the failure
            not_saved.append(repr(error))

    torch._C._cuda_attach_out_of_memory_observer(observe)
    history.start()
    held, request = PROGRAMS[spec["name"]]()
    outcome = {"first": served(request), "again": served(request)}
    torch.cuda.synchronize()
    outcome["after_synchronize"] = served(request)
    outcome["held"] = len(held)
    if not seen:
        history.save(path)
    return {
        **spec,
        "folder": None,
        "limit_bytes": int(fraction * total),
        "observed": seen,
        **outcome,
        **({"failed": f"no snapshot: {not_saved[0]}"} if not_saved else {}),
    }


def served(request: Request) -> str | None:
    """Return None if ``request`` is served, else what the error says."""
    try:
        request()
    except torch.OutOfMemoryError as error:
        return str(error)
    return None


def block(size: int) -> torch.Tensor:
    """Return ``size`` MiB."""
    return torch.empty(size * MiB, dtype=torch.uint8, device="cuda")
