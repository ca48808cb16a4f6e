"""What a probe costs: wall seconds, and host memory of its worker. And whether many probes leave anything behind.

    OMP_NUM_THREADS=1 python benchmarks/probe_costs.py [--many N]

Each row is one command as a user types it, in a fresh process. ``--many`` runs N probes of gpt-tiny one after the other
from one warm parent, then looks for processes, files and folders that they left; the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from oomscope.config.load import load_preset
from oomscope.probe.job import bundled_job
from oomscope.probe.process.warm import WarmParents
from oomscope.units import format_size

LLAMA_70B = "--preset llama3-70b"
OFFLOAD = (
    "offload.fine_grained_activation_offloading=true offload.offload_modules=[core_attn,attn_proj] "
    "optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=1"
)
ROWS = {
    "gpt-tiny": "--preset gpt-tiny",
    "llama3-70b rank (TP8 PP4 SP, 4 microbatches of 8192)": LLAMA_70B,
    "the same, 32 microbatches": f"{LLAMA_70B} data.num_microbatches=32",
    "the same, optimizer and activations on the host": f"{LLAMA_70B} {OFFLOAD}",
}


def measured(options: str) -> tuple[float, dict[str, object]]:
    """Return the wall seconds and the document of one probe."""
    command = [sys.executable, "-m", "oomscope", "probe", "--backend", "virtual", "--json", "--quiet", *options.split()]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return time.perf_counter() - began, json.loads(done.stdout)


def leftovers(count: int) -> list[str]:
    """Run ``count`` probes, and return the processes and files that they left."""
    job = replace(bundled_job(load_preset("gpt-tiny").config), backend="virtual")
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        parents = WarmParents()
        began = time.perf_counter()
        for _ in range(count):
            if parents.run(job).outcome != "fits":
                raise SystemExit("a probe of gpt-tiny did not fit")
        parents.close()
        print(f"{count} probes: {time.perf_counter() - began:.0f} s")
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return [f"process {child}" for child in children] + [str(path) for path in Path(folder).rglob("*")]


def main() -> int:
    """Print the table; return 1 if many probes left something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, default=0, metavar="N", help="probes that must leave nothing")
    many = parser.parse_args().many
    print("| probe | peak requested | wall, s | host memory |\n|---|---|---|---|")
    for name, options in ROWS.items():
        wall, document = measured(options)
        peak, memory = document["peak"]["requested_bytes"], document["worker_rss_bytes"]  # type: ignore[index]
        print(f"| {name} | {format_size(peak)} | {wall:.1f} | {format_size(memory)} |", flush=True)  # type: ignore[arg-type]
    left = leftovers(many) if many else []
    print(*(f"left: {each}" for each in left), sep="\n", end="")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
