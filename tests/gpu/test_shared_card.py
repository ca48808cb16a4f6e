"""A card that is not ours alone, programs that catch their failure, and those that are ended while recorded."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from oomscope.errors import MachineUnfitError
from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.machine.nvml import list_cards, read_card
from oomscope.probe.process.launch import run
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.read.load import load_snapshot
from oomscope.units import GiB, MiB
from oomscope.virtual.loading import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU"),
]

HELD = 4 * GiB
HOLD = f"""
import sys, torch
block = torch.empty({HELD}, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""
LOOP = """
import torch
block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
while True:
    other = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
"""
CATCHES = """
import torch, oomscope

def setup(ctx):
    kept = torch.empty(512 << 20, dtype=torch.uint8, device=ctx.device)
    def step(kept=kept):
        try:
            torch.empty(64 << 30, dtype=torch.uint8, device=ctx.device)
        except torch.OutOfMemoryError:
            torch.empty(128 << 20, dtype=torch.uint8, device=ctx.device)
    return oomscope.Target(step, model=torch.nn.Linear(8, 8).to(ctx.device))
"""
NEEDS = """
import torch, oomscope

def setup(ctx):
    def step():
        torch.empty(6 << 30, dtype=torch.uint8, device=ctx.device)
    return oomscope.Target(step, model=torch.nn.Linear(8, 8).to(ctx.device))
"""


@contextlib.contextmanager
def another_process() -> Iterator[subprocess.Popen[str]]:
    """Hold memory of the card in a process of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def measure(tmp_path: Path):
    def start(harness: str, **fields) -> ProbeResult:
        (tmp_path / "harness.py").write_text(harness)
        (tmp_path / "repo").mkdir(exist_ok=True)
        target = HarnessTarget(harness=str(tmp_path / "harness.py"), repo=str(tmp_path / "repo"))
        return run(ProbeJob(target=target, backend="cuda", timeout_s=120.0, **fields))

    return start


@pytest.fixture
def nvml() -> None:
    """Skip what asks the driver for the memory of all processes where a container or a MIG instance forbids it."""
    try:
        read_card(str(torch.cuda.get_device_properties(0).uuid))
    except MachineUnfitError as error:
        pytest.skip(f"NVML tells nothing here: {error}")


@pytest.mark.usefixtures("nvml")
def test_memory_of_another_process_is_seen_and_blamed(measure) -> None:
    alone = measure(NEEDS)
    assert alone.outcome == "fits"
    before = read_card(str(torch.cuda.get_device_properties(0).uuid)).used_bytes
    with another_process():
        used = read_card(str(torch.cuda.get_device_properties(0).uuid)).used_bytes
        beside = measure(NEEDS)
        limit = 8 * GiB + alone.non_torch_bytes
        refused = measure(NEEDS, limit_bytes=limit)
    assert used - before >= HELD
    assert beside.outcome == "fits"
    assert HELD <= beside.other_process_bytes - alone.other_process_bytes < HELD + 2 * GiB
    assert refused.outcome == "oom"
    assert "foreign" in refused.verdict.tags
    assert measure(NEEDS, limit_bytes=limit).outcome == "fits", "gone with the other process"


@pytest.mark.usefixtures("nvml")
def test_nvml_says_what_nvidia_smi_says() -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not on the PATH")
    query = "--query-gpu=uuid,memory.used,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    told = {uuid: rest for uuid, *rest in (line.split(", ") for line in lines)}
    cards = list_cards()
    assert {card.uuid for card in cards} == told.keys()
    for card in cards:
        used, total, driver = told[card.uuid]
        assert abs(card.memory.used_bytes - int(used) * MiB) < 64 * MiB
        assert card.memory.total_bytes <= int(total) * MiB
        assert card.memory.driver_version == driver


def test_a_failure_that_the_program_catches_is_not_its_end(measure) -> None:
    result = measure(CATCHES, limit_bytes=8 * GiB)
    assert result.failure is None
    assert result.outcome == "fits"
    assert result.peak.requested_bytes >= 640 * MiB


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_while_it_is_recorded(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    command = (sys.executable, "-c", "from oomscope.cli.main import main; main()", "record", "--")
    with subprocess.Popen(
        [*command, sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"RANK": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.wait(timeout=60) == -number
        finally:
            process.kill()
    found = sorted(path.name for path in tmp_path.iterdir() if path.name != "train.py")
    if number == signal.SIGKILL:
        assert found == [], "no half of a file"
        return
    assert found == ["snap-0.pickle"]
    snapshot = load_snapshot(tmp_path / "snap-0.pickle")
    assert snapshot.provenance.reason == "signal"
    assert any(block.requested_size == 64 * MiB for segment in snapshot.segments for block in segment.blocks)
