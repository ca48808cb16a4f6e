"""Whole probes on a virtual card: a process of its own, a harness, a checkout, and a result.

The first is run in a fresh process; those after it are forked, and say the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.process import launch
from oomscope.probe.result import ProbeResult
from oomscope.units import GiB, MiB
from tests import forked

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""
HARNESS = """
import torch, oomscope
from model import Net

def setup(ctx):
    model = Net(2048).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        model(torch.randn(4096, 2048, device=ctx.device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return oomscope.Target(step, model=model, optimizer=optimizer)
"""
PARAMETER_BYTES = 4 * (2 * 2048 * 8192 + 8192 + 2048)


def probe(directory: Path, harness: str = HARNESS, *, run=forked.probe, **fields) -> ProbeResult:
    repo = directory / "repo"
    repo.mkdir(exist_ok=True)
    (repo / "model.py").write_text(MODEL)
    (directory / "harness.py").write_text(harness)
    target = HarnessTarget(harness=str(directory / "harness.py"), repo=str(repo))
    return run(ProbeJob(target=target, backend="virtual", timeout_s=120.0, **fields))


@pytest.fixture(scope="module")
def fitting(tmp_path_factory) -> ProbeResult:
    return probe(tmp_path_factory.mktemp("fits"), run=launch.run, limit_bytes=4 * GiB)


def test_a_result_accounts_for_every_byte(fitting: ProbeResult) -> None:
    assert fitting.outcome == "fits", fitting.failure
    peak = fitting.peak
    assert sum(peak.categories.values()) == peak.requested_bytes
    assert sum(row.bytes for row in peak.sites) == peak.requested_bytes
    assert peak.categories["parameter"] == PARAMETER_BYTES
    assert peak.categories["optimizer_state"] == pytest.approx(2 * PARAMETER_BYTES, abs=1024)
    assert max(row.requested_bytes for row in fitting.phases) == peak.requested_bytes == max(fitting.timeline)
    assert fitting.margin_bytes == fitting.available_bytes - peak.reserved_bytes > 0
    assert fitting.verdict.kind == "headroom"
    assert fitting.worker_rss_bytes < 2 * GiB


def test_lines_and_modules_are_the_checkouts(fitting: ProbeResult) -> None:
    sites = {(row.site.file, row.site.module, row.category) for row in fitting.peak.sites}
    assert ("model.py", "down", "gradient") in sites
    assert {row.site.file for row in fitting.peak.sites} <= {"model.py", "harness.py", ""}


def test_asking_again_gives_the_same_answer(fitting: ProbeResult, tmp_path: Path) -> None:
    again = probe(tmp_path, limit_bytes=4 * GiB)
    varying = {"wall_s": 0.0, "worker_rss_bytes": 0}
    assert again.to_json() | varying == fitting.to_json() | varying


def test_a_card_that_is_too_small(fitting: ProbeResult, tmp_path: Path) -> None:
    """With room for all that is ever live less 32 MiB, nothing can help in the end, whatever failed first."""
    limit = fitting.non_torch_bytes + fitting.peak.requested_bytes - 32 * MiB
    result = probe(tmp_path, limit_bytes=limit)
    assert result.outcome == "oom"
    assert result.oom.iteration == 1
    assert result.demand_bytes == fitting.peak.requested_bytes
    assert result.verdict.kind == "capacity" or "later: capacity" in result.verdict.tags
    assert result.peak.reserved_bytes <= result.available_bytes
    assert "out of memory" in result.oom.message
