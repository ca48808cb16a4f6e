"""``oomscope record`` round a program that runs out of memory on a virtual card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oomscope.virtual.settings import CardSettings

PROGRAM = """
import oomscope.virtual
oomscope.virtual.load()
import torch
net = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
while True:
    net(torch.ones(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"))
"""


def test_a_failure_is_explained_before_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "oomscope", "record", "--watch", "--", sys.executable, "train.py"]
    environment = dict(os.environ) | CardSettings(total_bytes=1 << 30).variables()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert any(line.startswith("oomscope: history of 1,000,000 events covers about") for line in said)
    assert any("live memory has grown in 3 steps in a row, 128.00 MiB a step" in line for line in said)
    assert [path.name for path in tmp_path.glob("*.pickle")] == ["snap-0.oom.pickle"]
    error = next(number for number, line in enumerate(said) if line.startswith("torch.OutOfMemoryError"))
    verdict = said[error + 1 :]
    assert verdict[1].startswith("OUT OF MEMORY asking for ")
    assert any(line.startswith("Verdict") and "leak" in line for line in verdict)
    assert any("kept" in line and "train.py:12" in line for line in verdict)
