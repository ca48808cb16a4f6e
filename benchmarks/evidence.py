"""How often the categories that evidence tells are the true ones.

    python benchmarks/evidence.py                       # presets, probed on a virtual card
    python benchmarks/evidence.py FILE...               # snapshots that oomscope recorded

A probe knows the category of every allocation. Here its snapshot is stripped of all that PyTorch's own schema has no
field for (categories, phases, modules, forward stacks), the categories are told again from stacks and lifetimes alone,
and compared: of the requested bytes at the peak, and of all bytes ever allocated. What the truth itself leaves open
(the set-up of a program that does not tell what it allocates) is not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.activity import activity_of
from oomscope.snapshot.infer.categorise import Evidence, categorise
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Category, Snapshot, Trace

PRESETS = ("gpt-tiny", "llama3-8b", "llama3-70b", "qwen3-30b-a3b-shaped")


class Agreement(NamedTuple):
    """Shares of the bytes whose true category is known."""

    right: float
    unknown: float
    wrong: float


def stripped(trace: Trace) -> Trace:
    """Return ``trace`` as PyTorch would have recorded it."""
    nothing = np.zeros(len(trace), dtype=np.int32)
    return replace(
        trace,
        category=nothing.astype(np.int8),
        moment_id=nothing,
        module_id=nothing,
        forward_stack_id=nothing,
        moments=trace.moments[:1],
        modules=trace.modules[:1],
    )


def agreements(snapshot: Snapshot) -> tuple[Timeline, Evidence, dict[str, Agreement]]:
    """Return how often evidence is right: at the peak, and over all allocations."""
    trace = max(snapshot.traces, key=len)
    timeline = Timeline.of(stripped(trace), snapshot.segments)
    evidence = categorise(timeline, activity_of(timeline, snapshot.annotations))
    table = timeline.lifetimes
    truth = np.where(table.born == BEFORE, 0, trace.category[np.maximum(table.born, 0)])
    rows = {"at the peak": timeline.requested_at(timeline.peak_event()), "of all": np.arange(len(table))}
    return timeline, evidence, {name: _agreement(evidence, truth, table.size, each) for name, each in rows.items()}


def _agreement(evidence: Evidence, truth: Indices, size: Indices, rows: Indices) -> Agreement:
    rows = rows[truth[rows] != Category.UNKNOWN]
    told, total = evidence.category[rows], max(1, int(size[rows].sum()))
    right = int(size[rows][told == truth[rows]].sum()) / total
    unknown = int(size[rows][told == Category.UNKNOWN].sum()) / total
    return Agreement(right, unknown, 1 - right - unknown)


def probed(folder: Path) -> Iterator[Path]:
    """Yield a snapshot of each preset."""
    for preset in PRESETS:
        file = folder / f"{preset}.pickle"
        words = ["probe", "--preset", preset, "--snapshot", str(file), "--quiet", "--json"]
        command = [sys.executable, "-c", "from oomscope.cli.main import main; main()", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield file


def show(file: Path) -> None:
    """Print the agreement on one file, and the confidence of what was told of its peak."""
    timeline, evidence, found = agreements(load_snapshot(file))
    for name, each in found.items():
        print(f"{file.name:32} {name:12} right {each.right:7.2%}  unknown {each.unknown:7.2%}  wrong {each.wrong:7.2%}")
    live = timeline.requested_at(timeline.peak_event())
    sure = np.bincount(evidence.confidence[live], weights=timeline.lifetimes.size[live], minlength=len(Confidence))
    parts = ", ".join(f"{level.label} {sure[level] / sure.sum():.1%}" for level in Confidence if sure[level])
    print(f"{'':32} confidence at the peak: {parts}")


def main() -> None:
    """Compare each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for file in options.files or probed(Path(folder)):
            show(file)


if __name__ == "__main__":
    main()
