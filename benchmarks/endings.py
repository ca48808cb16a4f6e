"""How often a program that ends right after ``backward()`` dies at exit, and whether a result is ever lost.

Run it with ``python benchmarks/endings.py [RUNS]``. Without a probe such a program dies in most runs on a virtual card:
autograd's thread asks for the GIL while the interpreter is taken apart. The last line is the answer; the exit status
is 1 where a run died or lost its result.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
from pathlib import Path

from oomscope.probe.job import ProbeJob, ProgramTarget
from oomscope.probe.recording.settings import settings_of
from oomscope.probe.targets.program import arming
from oomscope.probe.targets.program.receipt import ProgramSettings
from oomscope.probe.targets.program.runs import run_program

PROGRAM = """
import torch
layer = torch.nn.Linear(256, 256).cuda()
layer(torch.randn(4, 256, device="cuda")).sum().backward()
"""


def main(runs: int) -> int:
    """Run the program ``runs`` times under a probe."""
    card = settings_of(ProbeJob(target=ProgramTarget(repo=".", command="python"), backend="virtual"), "virtual")
    seen: collections.Counter[str] = collections.Counter()
    for run in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            settings = ProgramSettings(folder=folder, backend="virtual", iterations=3, max_entries=10_000)
            environment = dict(os.environ) | card.card_variables()
            environment |= arming.variables(settings, environment)
            ended = run_program(
                [sys.executable, "-c", PROGRAM], environment, Path(folder), on_iterations=lambda _: None
            )
            kept = [Path(each.snapshot).is_file() and each.peak_bytes > 0 for each in ended.receipts]
            seen[f"status {ended.status}, {'kept' if kept == [True] else 'lost'}"] += 1
        if (run + 1) % 50 == 0:
            print(run + 1, dict(seen), flush=True)
    print(f"{runs} runs: {dict(seen)}")
    return int(set(seen) != {"status 0, kept"})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
