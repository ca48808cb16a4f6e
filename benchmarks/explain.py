"""How long an explanation takes from the shell, beside what torch ships for the same file.

    python benchmarks/explain.py FILE...                # snapshots of one's own
    python benchmarks/explain.py --repeat 5 --json FILE

``explain`` is ``oomscope explain FILE``; ``trace_plot``, ``segment_plot`` and ``trace`` are commands of
``python -m torch.cuda._memory_viz`` on the same file: two pages for a browser, and the list of events as text (its
other commands fetch a program from the network). None of them judges, replays or attributes; the comparison is of what
one waits for. All are started anew, and each number is the best of the repetitions: wall time, and the processor time
of all processes, which other programs on the machine do not lengthen. Torch unpickles without bounds; oomscope reads in
a bounded process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

OOMSCOPE = [sys.executable, "-c", "from oomscope.cli.main import main; main()", "explain"]
VIEWER = [sys.executable, "-m", "torch.cuda._memory_viz"]
PAGES = ("trace_plot", "segment_plot")
TEXT = "trace"


class Timing(NamedTuple):
    """The best of some runs."""

    wall_s: float
    processor_s: float
    output_bytes: int


def run(words: list[str]) -> Timing:
    """Run a command once."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(words, capture_output=True, check=False)
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise SystemExit(done.stderr.decode() or f"{words} failed")
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return Timing(wall, processor, len(done.stdout))


def best(words: list[str], repeat: int, page: Path | None = None) -> Timing:
    """Return the shortest times; where the command writes a page, that is its output."""
    timings = [run(words) for _ in range(repeat)]
    written = page.stat().st_size if page else timings[0].output_bytes
    return Timing(min(each.wall_s for each in timings), min(each.processor_s for each in timings), written)


def measure(file: Path, repeat: int) -> dict[str, Timing]:
    """Return the timing of each command on ``file``."""
    found = {"explain": best([*OOMSCOPE, str(file)], repeat)}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        for name in PAGES:
            found[name] = best([*VIEWER, name, str(file), "-o", str(page)], repeat, page)
    return found | {TEXT: best([*VIEWER, TEXT, str(file)], repeat)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = {file.name: measure(file, options.repeat) for file in options.files}
    if options.json:
        document = {name: {what: each._asdict() for what, each in row.items()} for name, row in table.items()}
        print(json.dumps(document))
        return
    for name, row in table.items():
        print(name)
        for what, each in row.items():
            print(
                f"  {what:13} {each.wall_s:6.2f} s   {each.processor_s:6.2f} s processor   {each.output_bytes:>11,} B"
            )


if __name__ == "__main__":
    main()
