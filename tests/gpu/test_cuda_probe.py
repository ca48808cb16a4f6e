"""The CUDA backend on a real GPU: the same document, the limit, the failure, the clock and the card's account."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.process.launch import run
from oomscope.probe.result import ProbeResult
from oomscope.units import GiB, MiB
from oomscope.virtual.loading import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU"),
]

HARNESS = """
import torch, oomscope

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

def setup(ctx):
    model = Net().to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        model(torch.randn(ROWS, 1024, device=ctx.device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return oomscope.Target(step, model=model, optimizer=optimizer)
"""


@pytest.fixture
def measure(tmp_path: Path):
    def start(rows: int = 1024, **fields) -> ProbeResult:
        (tmp_path / "harness.py").write_text(f"ROWS = {rows}\n{HARNESS}")
        (tmp_path / "repo").mkdir(exist_ok=True)
        target = HarnessTarget(harness=str(tmp_path / "harness.py"), repo=str(tmp_path / "repo"))
        return run(ProbeJob(target=target, backend="cuda", **fields))

    return start


def test_a_run_that_fits(measure, tmp_path: Path) -> None:
    result = measure(snapshot_path=str(tmp_path / "out.pickle"))
    assert result.failure is None
    assert (result.backend, result.outcome) == ("cuda", "fits")
    assert result.peak.requested_bytes <= result.peak.active_bytes <= result.peak.reserved_bytes
    assert sum(result.peak.categories.values()) == result.peak.requested_bytes
    assert sum(row.bytes for row in result.peak.sites) == result.peak.requested_bytes
    # 8.4 M parameters of 4 bytes, each with a gradient and two moments
    parameters = 4 * (1024 * 4096 * 2 + 4096 + 1024)
    assert result.peak.categories["parameter"] == pytest.approx(parameters, rel=0.01)
    assert result.peak.categories["optimizer_state"] == pytest.approx(2 * parameters, rel=0.01)
    assert {row.phase for row in result.phases} >= {"init", "forward", "backward", "optimizer"}
    assert result.step_time_s > 0
    assert result.non_torch_bytes > 50 * MiB, "a CUDA context"
    assert {"driver", "cuda", "gpu"} <= set(result.versions)
    assert not result.truncated
    assert Path(result.snapshot).is_file()


def test_a_limit_is_kept_and_the_failure_is_recorded_where_it_happens(measure) -> None:
    roomy = measure(rows=65536)
    assert roomy.outcome == "fits"
    limit = roomy.non_torch_bytes + roomy.other_process_bytes + roomy.peak.requested_bytes // 2
    result = measure(rows=65536, limit_bytes=limit)
    assert result.outcome == "oom"
    assert result.available_bytes == limit - result.non_torch_bytes - result.other_process_bytes
    assert result.peak.reserved_bytes <= result.available_bytes
    assert result.oom.event is not None
    assert result.verdict.kind == "capacity"
    assert result.verdict.live_requested_bytes + result.oom.requested_bytes > result.available_bytes


def test_a_ring_that_wraps_is_reported(measure) -> None:
    result = measure(max_entries=50, iterations=4)
    assert result.truncated
    assert sum(result.peak.categories.values()) == result.peak.requested_bytes


def test_a_card_larger_than_the_one_there_is_unfit(measure) -> None:
    result = measure(limit_bytes=4096 * GiB)
    assert result.failure.kind == "unfit"
