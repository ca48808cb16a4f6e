"""What a recording costs: writing a snapshot of so many events, and training steps under it.

Without a GPU the steps run on the virtual card: their time is that of the host, of which a recording takes most.

The events written are like those of a real history: half of them allocations with stacks of 30 Python frames, each a
list of its own, made of 2,000 frames that all share.

    python benchmarks/capture.py [EVENTS ...]
"""

# ruff: noqa: E402 - on a machine without a GPU the card comes before torch

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from oomscope.virtual import loading

loading.load_where_needed()

import torch

import oomscope
from oomscope.capture import history
from oomscope.capture.arming import variables
from oomscope.capture.settings import Settings
from oomscope.capture.writer import write
from oomscope.units import format_size

FRAMES, DEPTH = 2_000, 30
STARTS = 20
LAYERS, WIDTH, ROWS, STEPS = 24, 1024, 512, 20


def document(events: int) -> dict[str, Any]:
    """Return a snapshot in torch's schema."""
    frames = [{"filename": f"model/file{i % 50}.py", "line": i, "name": f"f{i % 300}"} for i in range(FRAMES)]

    def event(number: int) -> dict[str, Any]:
        action = ("alloc", "alloc", "free_requested", "free_completed")[number % 4]
        known = {"action": action, "addr": 0x7F0000000000 + number * 512, "size": 1 << number % 24, "stream": 0}
        stack = [frames[(number * 7 + i) % FRAMES] for i in range(DEPTH)] if action == "alloc" else []
        return known | {
            "frames": stack,
            "time_us": 1_700_000_000_000_000 + number,
            "user_metadata": "",
            "pool_id": (0, 0),
        }

    return {"segments": [], "device_traces": [[event(number) for number in range(events)]], "allocator_settings": {}}


def writing(events: int) -> Iterator[str]:
    """Yield what it takes to write so many events under each kind of name."""
    snapshot = document(events)
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("pickle", "pickle.gz", "pickle.zst"):
            path = Path(folder, f"snap.{ending}")
            written = write(snapshot, path, since=time.perf_counter(), max_entries=None, force=False)
            size = f"{format_size(written.file_bytes):>11}, {written.file_bytes / events:5.0f} bytes an event"
            yield f"{events:>9,} events  .{ending:<10} {written.seconds:6.2f} s  {size}"


def start_up() -> str:
    """Return what every Python process pays under ``oomscope record``."""

    def least(environment: dict[str, str]) -> float:
        command = [sys.executable, "-c", "pass"]
        return min(timed(lambda: subprocess.run(command, env=environment, check=True)) for _ in range(STARTS))

    here = {"PYTHONPATH": str(Path(oomscope.__file__).parents[1])}  # also where it is not installed
    plain, armed = least(here), least(variables(Settings(), here))
    return f"start of Python: {1000 * plain:.1f} ms, armed {1000 * armed:.1f} ms"


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@contextmanager
def torch_s_own() -> Iterator[None]:
    """Record with torch's recorder alone, as ``oomscope.record`` does by default."""
    history.start(max_entries=1_000_000)
    try:
        yield
    finally:
        history.stop()


def training() -> Iterator[str]:
    """Yield the time of a training step of many small operations, without and with a recording."""
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(ROWS, WIDTH, device="cuda")

    def steps() -> None:
        for _ in range(STEPS):
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()

    steps()
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, AbstractContextManager[object]] = {
            "no recording": nullcontext(),
            "torch's own": torch_s_own(),
            **{
                f"stacks={stacks}": oomscope.record(Path(folder, f"{stacks}.pickle"), stacks=stacks)
                for stacks in ("none", "python", "all")
            },
        }
        for name, recording in ways.items():
            with recording:
                step = min(timed(steps) for _ in range(5)) / STEPS
                read = timed(history.document) if history.is_recording() else 0.0
            yield f"{name:<13} {1000 * step:7.2f} ms a step, history read in {read:.2f} s"


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", nargs="*", type=int, default=[10_000, 100_000])
    for events in parser.parse_args().events:
        for line in writing(events):
            print(line)
    print(start_up())
    if torch.cuda.is_available():
        for line in training():
            print(line)
    else:
        print("training under a recording: needs an NVIDIA GPU (torch.cuda.is_available() is False)")


if __name__ == "__main__":
    main()
