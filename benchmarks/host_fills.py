"""What a model costs that is built on the host, in fp32, and then moved to the simulated device.

The probe's time and the host memory of its process, for models of so many blocks of two matrices of 4096 × 16384.

    OMP_NUM_THREADS=1 python benchmarks/host_fills.py [--blocks 6 60]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oomscope.units import format_size

PARAMETERS_OF_A_BLOCK = 2 * 4096 * 16384 + 4096 + 16384
HARNESS = """\
import torch
from torch import nn

import oomscope


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (self.up, self.down):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def setup(ctx):
    model = nn.Sequential(*(Block(4096) for _ in range({blocks}))).to(ctx.device, torch.bfloat16)

    def step():
        model(torch.randn(512, 4096).to(ctx.device, torch.bfloat16)).square().mean().backward()
        model.zero_grad()

    return oomscope.Target(step, model=model)
"""


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[6, 60])
    options = parser.parse_args()
    print("blocks   parameters   built on the host   probe   memory of its process")
    for blocks in options.blocks:
        found = probed(blocks)
        count = blocks * PARAMETERS_OF_A_BLOCK
        rss = format_size(found["worker_rss_bytes"])
        print(
            f"{blocks:6}   {count / 1e9:8.2f} G   {format_size(4 * count):>17}   {found['wall_s']:3.1f} s   {rss:>21}"
        )


def probed(blocks: int) -> dict[str, Any]:
    """Return the document of a probe of the model."""
    with tempfile.TemporaryDirectory() as name:
        harness = Path(name) / "harness.py"
        harness.write_text(HARNESS.replace("{blocks}", str(blocks)))
        command = [sys.executable, "-m", "oomscope", "probe", "--harness", str(harness), "--repo", name]
        options = ["--backend", "sim", "--gpu", "h100-80gb", "--json"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        document: dict[str, Any] = json.loads(done.stdout)
        return document


if __name__ == "__main__":
    main()
