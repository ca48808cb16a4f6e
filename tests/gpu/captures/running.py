"""Runs the items of a part in processes of their own, side by side, and never waits for one that does not end."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
GRACE_S = 15.0
"""An item that has begun may go on so long after the time is up."""
KILLED_S = 5.0
"""A process that was killed is waited for so long; one that hangs in the driver is left behind."""
FLUSH_S = 20.0
"""What is done is handed on as often."""

left_behind: list[int] = []
"""Processes that did not even end when they were killed."""


@dataclass(frozen=True)
class Part:
    """One kind of capture."""

    run: Callable[[Spec], dict[str, Any]]
    """Called in a fresh process for each item."""
    seconds: float
    """An item that takes longer is ended."""


def run_all(
    part: Part,
    specs: Sequence[Spec],
    folder: Path,
    *,
    at_once: int,
    until: float,
    keep: Callable[[list[dict[str, Any]]], None] = lambda _done: None,
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
            if time.monotonic() > until:
                done[number] = failed(spec, "left out: the time was up")
                continue
            process = context.Process(target=child, args=(part, spec, folder / f"item-{number}.json"), daemon=True)
            process.start()
            running[number] = process, min(time.monotonic() + part.seconds, until + GRACE_S)
        for number, (process, deadline) in list(running.items()):
            if process.is_alive() and time.monotonic() < deadline:
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


def child(part: Part, spec: Spec, path: Path) -> None:
    """Run one item under its allocator settings and write what it gave."""
    for name in SETTINGS:
        os.environ.pop(name, None)
    if spec["conf"]:
        os.environ[SETTINGS[0]] = spec["conf"]
    try:
        given = part.run({**spec, "folder": str(path.parent)})
    except BaseException:  # noqa: BLE001 # whatever it is, the report names it
        given = failed(spec, traceback.format_exc(limit=-4))
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(given, default=str), encoding="utf-8")
    partial.rename(path)


def answer(path: Path, spec: Spec, exit_code: int | None) -> dict[str, Any]:
    """Return what a child wrote, or that it wrote nothing."""
    if path.exists():
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return given
    return failed(spec, f"ended without a word (exit code {exit_code})")


def failed(spec: Spec, why: str) -> dict[str, Any]:
    """Return what stands for an item that gave nothing."""
    return {"name": spec["name"], "conf": spec["conf"], "failed": why}
