"""How long ``oomscope explain`` takes on traces made to be slow, and how that grows with their length.

    python benchmarks/adversarial.py                              # 100,000 events of each kind
    python benchmarks/adversarial.py --events 1000000 --timeout 600
    python benchmarks/adversarial.py --kinds pages,ooms --limits seconds=60

Each kind takes something to an extreme that no training job does: as many sizes, streams, waits, segments, pages or
failures as events. Files are written as torch writes them and read under the default limits. The time is that of the
processor in all processes of the command, the compiled engine being on disk; the memory is the largest process's.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from oomscope.units import MiB, format_size

EXPLAIN = [sys.executable, "-c", "from oomscope.cli.main import main; main()", "explain"]
MEASURE = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
try:
    done = subprocess.run(sys.argv[2:], capture_output=True, timeout=float(sys.argv[1]), check=False)
    code, said = done.returncode, (done.stderr or done.stdout).decode().splitlines()
except subprocess.TimeoutExpired:
    code, said = None, []
used = resource.getrusage(resource.RUSAGE_CHILDREN)
wall = time.perf_counter() - began
print(json.dumps([code, wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, said[-1] if said and code else ""]))
"""
BASE = 0x7F00_0000_0000
SEGMENT = 20 * MiB


class Event(NamedTuple):
    """One event of a trace, under torch's names."""

    action: str
    addr: int
    size: int
    stream: int = 0


def _life(address: int, size: int, stream: int = 0) -> Iterator[Event]:
    for action in ("alloc", "free_requested", "free_completed"):
        yield Event(action, address, size, stream)


def one_size(events: int) -> Iterator[Event]:
    """Yield blocks of one size, a thousand places in turn."""
    for number in range(events // 3):
        yield from _life(BASE + number % 1000 * 2 * MiB, 2 * MiB)


def sizes(events: int) -> Iterator[Event]:
    """Yield blocks of which no two are of one size."""
    address = BASE
    for number in range(events // 3):
        yield from _life(address, 512 * (number + 1))
        address += 512 * (number + 2)


def nested(events: int) -> Iterator[Event]:
    """Yield blocks that are all alive at once, freed in the order opposite to that of their allocation."""
    count = events // 3
    for number in range(count):
        yield Event("alloc", BASE + 512 * number, 512)
    for number in reversed(range(count)):
        yield from list(_life(BASE + 512 * number, 512))[1:]


def streams(events: int) -> Iterator[Event]:
    """Yield blocks on thousands of streams."""
    for number in range(events // 3):
        yield from _life(BASE + 512 * number, 512, number % max(1, events // 30))


def pending(events: int) -> Iterator[Event]:
    """Yield blocks that are all freed while a stream still uses them."""
    count = events // 3
    for number in range(count):
        yield from list(_life(BASE + 512 * number, 512))[:2]
    for number in range(count):
        yield Event("free_completed", BASE + 512 * number, 512)


def interleaved(events: int) -> Iterator[Event]:
    """Yield frees that complete one by one, each before another allocation."""
    count = events // 3
    for number in range(count + count // 2):
        if number < count:
            yield from list(_life(BASE + 512 * number, 512))[:2]
        if number >= count // 2:
            yield Event("free_completed", BASE + 512 * (number - count // 2), 512)


def segments(events: int) -> Iterator[Event]:
    """Yield blocks that each take a segment of their own and give it back."""
    for number in range(events // 5):
        address = BASE + number % 5000 * SEGMENT
        yield Event("segment_alloc", address, SEGMENT)
        yield from _life(address, 12 * MiB)
        yield Event("segment_free", address, SEGMENT)


def pages(events: int) -> Iterator[Event]:
    """Yield pages that are mapped with a gap between any two, then unmapped one by one."""
    count = events // 4
    for number in range(count):
        address = BASE + 2 * number * SEGMENT
        yield Event("segment_map", address, SEGMENT)
        yield Event("alloc", address, 12 * MiB)
    for number in range(count):
        address = BASE + 2 * number * SEGMENT
        yield Event("free_completed", address, 12 * MiB)
        yield Event("segment_unmap", address, SEGMENT)


def bare_pages(events: int) -> Iterator[Event]:
    """Yield pages that no block ever lay in, unmapped although nobody mapped them."""
    for number in range(events):
        yield Event("segment_map" if number % 2 else "segment_unmap", BASE + 2 * number * SEGMENT, SEGMENT)


def failures(events: int) -> Iterator[Event]:
    """Yield requests that fail one after the other, each after a segment was given back."""
    for number in range(events // 2):
        yield Event("segment_free", BASE + number * SEGMENT, SEGMENT)
        yield Event("oom", 5 * MiB, 30 * MiB)


def releases(events: int) -> Iterator[Event]:
    """Yield segments that are all taken, then all given back, and never used."""
    for action in ("segment_alloc", "segment_free"):
        for number in range(events // 2):
            yield Event(action, BASE + number * SEGMENT, SEGMENT)


KINDS: dict[str, Callable[[int], Iterator[Event]]] = {
    maker.__name__: maker
    for maker in (
        one_size,
        sizes,
        nested,
        streams,
        pending,
        interleaved,
        segments,
        pages,
        bare_pages,
        failures,
        releases,
    )
}


def write(kind: str, events: int, path: Path) -> None:
    """Write a snapshot with the trace of that kind."""
    trace = [{**event._asdict(), "frames": []} for event in KINDS[kind](events)]
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))


def measure(path: Path, timeout: float, limits: list[str]) -> tuple[int | None, float, float, int, str]:
    """Return exit code (None: it took too long), wall and processor seconds, bytes of memory, and the refusal."""
    options = [word for limit in limits for word in ("--read-limit", limit)]
    words = [sys.executable, "-c", MEASURE, str(timeout), *EXPLAIN, str(path), *options]
    return tuple(json.loads(subprocess.run(words, capture_output=True, check=True).stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a command is given up")
    parser.add_argument("--limits", action="append", default=[], help="a --read-limit of oomscope")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds.split(","):
            path = Path(folder) / f"{kind}.pickle"
            write(kind, options.events, path)
            code, wall, processor, memory, said = measure(path, options.timeout, options.limits)
            outcome = "given up" if code is None else said or "explained"
            print(
                f"{kind:12} {options.events:>10,} {wall:8.1f} s {processor:8.1f} s processor  "
                f"{format_size(memory):>12}  {outcome}",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    main()
