"""``oomscope.record`` round real training on a real GPU: the history, the failure where it happens, and the price."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oomscope
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action
from oomscope.units import GiB, MiB
from oomscope.virtual.loading import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU"),
]

PROGRAM = """
import torch
blocks = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
torch.cuda.set_per_process_memory_fraction(0.5)
blocks.append(torch.empty(torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device="cuda"))
"""


def train(steps: int) -> None:
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_steps_and_lines_are_in_the_snapshot(tmp_path: Path, capfd) -> None:
    with oomscope.record(tmp_path / "snap-{rank}.pickle.gz", every=2):
        train(4)
    snapshot = load_snapshot(tmp_path / "snap-0.pickle.gz")
    trace = next(trace for trace in snapshot.traces if len(trace))
    assert {trace.moments[moment].iteration for moment in trace.moment_id} >= {1, 2, 3}
    assert any(frame.filename == __file__ and frame.name == "train" for stack in trace.stacks for frame in stack)
    reconciled = Timeline.of(trace, snapshot.segments).reconciliation
    assert reconciled.walked_bytes == reconciled.segment_bytes
    told = snapshot.provenance
    assert (told.reason, told.iteration, told.torch_version) == ("end", 4, torch.__version__)
    assert told.cards[0].total_bytes > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "snap-0.pickle.gz",
        "snap-0.step2.pickle.gz",
        "snap-0.step4.pickle.gz",
    ]
    assert capfd.readouterr().err.count("oomscope: wrote") == 3
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_failure_is_kept_with_everything_still_alive(tmp_path: Path) -> None:
    total = torch.cuda.get_device_properties(0).total_memory

    @oomscope.record(tmp_path / "snap.pickle")
    def fail() -> None:
        kept = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        del kept

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["snap.oom.pickle"]
    snapshot = load_snapshot(tmp_path / "snap.oom.pickle")
    trace = next(trace for trace in snapshot.traces if len(trace))
    assert trace.action[-1] in {Action.OOM, Action.SNAPSHOT}
    assert any(block.requested_size == 64 * MiB for segment in snapshot.segments for block in segment.blocks)
    assert snapshot.provenance.refused.requested_bytes == 2 * total
    assert snapshot.provenance.cards[0].total_bytes <= total + GiB


def test_a_program_without_any_change(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    oomscope_command = (sys.executable, "-c", "from oomscope.cli.main import main; main()")
    done = subprocess.run(
        [*oomscope_command, "record", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"RANK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr
    snapshot = load_snapshot(tmp_path / "snap-1.oom.pickle")
    assert snapshot.provenance.cards[0].memory_fraction == 0.5
