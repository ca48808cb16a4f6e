"""Runs the items of a part in processes of their own, side by side, and never waits for one that does not end.

A signal that would end this process ends its items first, so that nothing of it stays on the card; what was done by
then is handed on as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

Spec = dict[str, Any]
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
GRACE_S = 15.0
"""An item that has begun may go on so long after the time is up."""
KILLED_S = 5.0
"""A process that was killed is waited for so long; one that hangs in the driver is left behind."""
FLUSH_S = 20.0
"""What is done is handed on as often."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Those that ask to end; ``timeout`` sends the first."""
_PR_SET_PDEATHSIG = 1

left_behind: list[int] = []
"""Processes that did not even end when they were killed."""
told_to_end: list[int] = []
"""The signals that have asked to end since :func:`heeded`."""


@dataclass(frozen=True)
class Part:
    """One kind of capture."""

    run: Callable[[Spec], dict[str, Any]]
    """Called in a fresh process for each item."""
    seconds: float
    """An item that takes longer is ended."""


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Note the signals that ask to end, for :func:`run_all` to heed."""

    def note(number: int, _frame: FrameType | None) -> None:
        told_to_end.append(number)

    told_to_end.clear()
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_all(
    part: Part,
    specs: Sequence[Spec],
    folder: Path,
    *,
    at_once: int,
    until: float,
    keep: Callable[[list[dict[str, Any]]], object] = lambda _done: None,
) -> list[dict[str, Any]]:
    """Run every item in a process of its own, and return what each gave.

    Args:
        part: what runs them.
        specs: the items.
        folder: where their files go.
        at_once: how many run side by side.
        until: by the monotonic clock; what has not begun by then is left out, and named.
        keep: is given what is done so far, again and again.
    """
    context = multiprocessing.get_context("fork")
    waiting, running, done = list(enumerate(specs)), dict[int, tuple[Any, float]](), dict[int, dict[str, Any]]()
    kept = time.monotonic()
    while waiting or running:
        while waiting and len(running) < at_once:
            number, spec = waiting.pop(0)
            if told_to_end or time.monotonic() > until:
                why = f"signal {told_to_end[0]} came" if told_to_end else "the time was up"
                done[number] = failed(spec, f"left out: {why}")
                continue
            path = folder / f"item-{number}.json"
            process = context.Process(target=child, args=(part, spec, path, os.getpid()), daemon=True)
            process.start()
            running[number] = process, min(time.monotonic() + part.seconds, until + GRACE_S)
        for number, (process, deadline) in list(running.items()):
            if process.is_alive() and time.monotonic() < deadline and not told_to_end:
                continue
            process.kill()
            process.join(KILLED_S)
            if process.is_alive():
                left_behind.append(process.pid)
            del running[number]
            done[number] = answer(folder / f"item-{number}.json", specs[number], process.exitcode)
        if time.monotonic() - kept > FLUSH_S:
            try:
                keep([done[number] for number in sorted(done)])
            except OSError:
                traceback.print_exc()  # it is kept again at the end
            kept = time.monotonic()
        time.sleep(0.02)
    return [done[number] for number in sorted(done)]


def child(part: Part, spec: Spec, path: Path, parent: int) -> None:
    """Run one item under its allocator settings and write what it gave; end when ``parent`` does, however it ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _end_with(parent)
    for name in SETTINGS:
        os.environ.pop(name, None)
    if spec["conf"]:
        os.environ[SETTINGS[0]] = spec["conf"]
    try:
        given = part.run({**spec, "folder": str(path.parent), "answer": str(path)})
    except BaseException:  # noqa: BLE001 # whatever it is, the report names it
        given = failed(spec, traceback.format_exc(limit=-4))
    _write(path, given)


def so_far(spec: Spec, given: dict[str, Any]) -> None:
    """Leave what stands for the item should its process not come to an end; without a runner there is nowhere to."""
    if "answer" in spec:
        _write(Path(spec["answer"]), given)


def _write(path: Path, given: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    kept = {name: value for name, value in given.items() if name not in {"folder", "answer"}}
    partial.write_text(json.dumps(kept, default=str), encoding="utf-8")
    partial.rename(path)


def _end_with(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: there it ends with its own time
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def answer(path: Path, spec: Spec, exit_code: int | None) -> dict[str, Any]:
    """Return what a child wrote, or that it wrote nothing."""
    if path.exists():
        try:
            given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            path.unlink()
        except (OSError, ValueError) as error:
            return failed(spec, f"its answer cannot be read: {error!r}")
        return given
    return failed(spec, f"ended without a word (exit code {exit_code})")


def failed(spec: Spec, why: str) -> dict[str, Any]:
    """Return what stands for an item that gave nothing."""
    return {"name": spec["name"], "conf": spec["conf"], "failed": why}
