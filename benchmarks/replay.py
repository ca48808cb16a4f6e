"""How fast the emulator replays long traces, end to end, and how that grows with their length.

    python benchmarks/replay.py                 # 1,000,000 operations, every kind of trace
    python benchmarks/replay.py --growth        # 10 thousand to 10 million operations
    python benchmarks/replay.py --python        # the same source, not compiled, on 50,000 operations

An operation is one malloc or one free; all rules and statistics are on, placements are recorded. What is timed is
``oomscope.allocator.replay`` as a whole, from arrays to arrays, without the making of the trace and without the
loading or compiling of the engine. The time is that of the processor, on one thread, so that other programs on the
machine lengthen it little; the number is the median of five runs, the best in brackets. The real allocator, alone on
one thread, does 1.3 to 2.9 million operations a second.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from oomscope.allocator import AllocatorSettings, Driver, ReplayOp, replay
from oomscope.units import GiB, KiB, MiB

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A kind of trace under a configuration."""

    name: str
    trace: str
    conf: str = ""
    total: int = 80 * GiB
    fraction: float | None = None


CASES = (
    Case("training, fixed lengths", "fixed"),
    Case("training, variable lengths", "variable"),
    Case("training, variable lengths, expandable", "variable", "expandable_segments:True"),
    Case("training, variable lengths, gc", "variable", "garbage_collection_threshold:0.6", 24 * GiB, 0.9),
    Case("fragmented, 2,000 live", "fragmented-2000"),
    Case("fragmented, 20,000 live", "fragmented-20000", total=400 * GiB),
    Case("fragmented, 20,000 live, expandable", "fragmented-20000", "expandable_segments:True", 400 * GiB),
)


def training(length: int, *, variable: bool) -> Columns:
    """Return iterations of a 32-layer transformer: its activations, gradients and temporaries."""
    random = np.random.default_rng(0)
    rows: list[tuple[int, int, int]] = []
    spare: list[int] = []
    made = 0

    def malloc(nbytes: int) -> int:
        nonlocal made
        if not spare:
            spare.append(made)
            made += 1
        rows.append((ReplayOp.MALLOC, spare[-1], nbytes))
        return spare.pop()

    def free(name: int) -> None:
        rows.append((ReplayOp.FREE, name, 0))
        spare.append(name)

    while len(rows) < length:
        tokens = int(random.integers(256, 2048)) if variable else 1024
        widths = [tokens * 16 * KiB, tokens * 16 * KiB, tokens * 56 * KiB, tokens * 2 * KiB, tokens * 256, tokens * 8]
        layers = []
        for _ in range(32):
            kept = []
            for nbytes in widths:
                temporary = malloc(nbytes // 2 + 512)
                kept.append(malloc(nbytes))
                free(temporary)
            layers.append(kept)
        for kept in reversed(layers):
            for name, nbytes in zip(reversed(kept), reversed(widths), strict=True):
                gradient, workspace = malloc(nbytes), malloc(nbytes // 3 + 1000)
                for gone in (name, gradient, workspace):
                    free(gone)
    return _columns(rows[:length])


def fragmented(length: int, live: int) -> Columns:
    """Return mallocs of all sizes and frees in random order, with about ``live`` allocations alive."""
    random = np.random.default_rng(0)
    small = random.integers(1, MiB, length)
    large = random.integers(MiB, 6 * MiB, length)
    sizes = np.where(random.random(length) < 0.5, small, large).tolist()
    draws = random.random(length).tolist()
    rows: list[tuple[int, int, int]] = []
    held: list[int] = []
    spare = list(range(2 * live))
    for size, draw in zip(sizes, draws, strict=True):
        if held and len(held) > live * (0.98 + 0.04 * draw):
            place = int(draw * len(held))
            held[place], held[-1] = held[-1], held[place]
            spare.append(held.pop())
            rows.append((ReplayOp.FREE, spare[-1], 0))
        else:
            rows.append((ReplayOp.MALLOC, spare[-1], size))
            held.append(spare.pop())
    return _columns(rows)


def make_trace(kind: str, length: int) -> Columns:
    """Return the trace of that name."""
    if kind.startswith("fragmented"):
        return fragmented(length, int(kind.removeprefix("fragmented-")))
    return training(length, variable=kind == "variable")


def seconds(case: Case, trace: Columns, *, compiled: bool) -> float:
    """Return the processor time that one replay took."""
    settings = AllocatorSettings.parse(case.conf)
    began = time.process_time()
    replay(*trace, settings=settings, driver=Driver(case.total), fraction=case.fraction, compiled=compiled)
    return time.process_time() - began


def rate(case: Case, trace: Columns, *, compiled: bool) -> str:
    """Return operations a second as text: the median of five runs, and the best."""
    taken = [seconds(case, trace, compiled=compiled) for _ in range(5)]
    length = len(trace[0])
    return f"{length / statistics.median(taken):>12,.0f}/s ({length / min(taken):,.0f})"


def memory(case: Case, trace: Columns, *, compiled: bool) -> float:
    """Return the most bytes an operation that one replay holds at once, the trace included."""
    tracemalloc.start()
    seconds(case, trace, compiled=compiled)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (peak + sum(column.nbytes for column in trace)) / len(trace[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", action="store_true", help="traces of 10 thousand to 10 million operations")
    parser.add_argument("--python", action="store_true", help="run the engine as Python")
    options = parser.parse_args()
    compiled = not options.python
    seconds(CASES[0], make_trace("fixed", 1000), compiled=compiled)
    if options.growth:
        for length in (10_000, 100_000, 1_000_000, 10_000_000):
            trace = make_trace("fragmented-2000", length)
            speed = rate(CASES[4], trace, compiled=compiled)
            print(
                f"{length:>12,} operations {speed}, {memory(CASES[4], trace, compiled=compiled):.0f} bytes an operation"
            )
        return
    length = 50_000 if options.python else 1_000_000
    for case in CASES:
        print(f"{case.name:<42} {rate(case, make_trace(case.trace, length), compiled=compiled)}")


def _columns(rows: list[tuple[int, int, int]]) -> Columns:
    kinds, ids, nbytes = np.array(rows, dtype=np.int64).T
    return np.ascontiguousarray(kinds), np.ascontiguousarray(ids), np.ascontiguousarray(nbytes)


if __name__ == "__main__":
    main()
