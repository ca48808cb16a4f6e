"""Whole probes on a virtual card: PyTorch's own allocator, recorded, with everything that a report says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob
from oomscope.probe.process import launch, warm
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action, Category, Snapshot
from oomscope.units import GiB, MiB
from oomscope.virtual.installed_torch import find_torch
from oomscope.virtual.loading import LIBRARIES
from oomscope.virtual.sonames import CARD
from tests import forked

TORCH = find_torch()
pytestmark = [
    pytest.mark.skipif(TORCH is None or TORCH.cuda is None, reason="torch is built without CUDA"),
    pytest.mark.skipif(not (LIBRARIES / CARD).is_file(), reason="the virtual card's library is not built"),
]

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
HARNESS = """
import torch, oomscope
from model import Net

def setup(ctx):
    model = Net(1024).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        loss = model(torch.randn(2048, 1024, device=ctx.device)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return oomscope.Target(step, model=model, optimizer=optimizer)
"""
PARAMETER_BYTES = 4 * 2 * (2 * 1024 * 4096 + 4096 + 1024)


def probe(directory: Path, harness: str = HARNESS, *, run=forked.probe, **fields) -> ProbeResult:
    repo = directory / "repo"
    repo.mkdir(exist_ok=True)
    (repo / "model.py").write_text(MODEL)
    (directory / "harness.py").write_text(harness)
    target = HarnessTarget(harness=str(directory / "harness.py"), repo=str(repo))
    return run(ProbeJob(target=target, backend="virtual", timeout_s=300.0, **fields))


@pytest.fixture(scope="module")
def fitting(tmp_path_factory) -> tuple[ProbeResult, Snapshot]:
    folder = tmp_path_factory.mktemp("fits")
    result = probe(folder, run=launch.run, limit_bytes=4 * GiB, snapshot_path=str(folder / "out.pickle"))
    assert result.failure is None
    return result, load_snapshot(folder / "out.pickle")


def test_a_result_accounts_for_every_byte(fitting: tuple[ProbeResult, Snapshot]) -> None:
    result, _ = fitting
    peak = result.peak
    assert peak is not None
    assert (result.backend, result.outcome, result.gpu, result.limit_bytes) == ("virtual", "fits", "h100-80gb", 4 * GiB)
    assert sum(peak.categories.values()) == sum(row.bytes for row in peak.sites) == peak.requested_bytes
    assert peak.categories["parameter"] == PARAMETER_BYTES
    assert peak.categories["optimizer_state"] == 2 * PARAMETER_BYTES
    assert peak.requested_bytes <= (peak.active_bytes or 0) <= (peak.reserved_bytes or 0)
    assert result.step_time_s is None, "a card that computes nothing has no clock"
    assert result.notes == ()


def test_phases_follow_the_program(fitting: tuple[ProbeResult, Snapshot]) -> None:
    result, _ = fitting
    seen = list(dict.fromkeys(row.phase for row in result.phases))
    assert seen == ["init", "forward", "loss", "backward", "optimizer", "other"]


def test_every_allocation_of_backward_has_its_forward_line_and_module(fitting: tuple[ProbeResult, Snapshot]) -> None:
    (trace,) = fitting[1].traces
    inside = [
        event
        for event in (trace.action == Action.ALLOC).nonzero()[0].tolist()
        if trace.moments[trace.moment_id[event]].phase == "backward"
    ]
    assert len(inside) > 20
    for event in inside:
        stack = trace.stacks[trace.forward_stack_id[event] or trace.stack_id[event]]
        assert any(frame.filename.endswith(("model.py", "harness.py")) for frame in stack)
    modules = {trace.modules[trace.module_id[event]] for event in inside}
    assert {"blocks.0.up", "blocks.1.down", "blocks.0"} <= modules


def test_categories_follow_lives(fitting: tuple[ProbeResult, Snapshot]) -> None:
    (trace,) = fitting[1].traces
    allocs = (trace.action == Action.ALLOC).nonzero()[0].tolist()
    bytes_of = {kind: sum(int(trace.size[e]) for e in allocs if trace.category[e] == kind) for kind in Category}
    assert bytes_of[Category.PARAMETER] == PARAMETER_BYTES
    assert bytes_of[Category.GRADIENT] == 2 * PARAMETER_BYTES, "in each of two iterations"
    assert bytes_of[Category.INPUT] == 2 * 2048 * 1024 * 4
    assert bytes_of[Category.ACTIVATION] >= 2 * 2 * 2 * 2048 * 4096 * 4, "both sides of each GELU"
    assert bytes_of[Category.UNKNOWN] <= 1 * MiB


PLAIN = """
import sys
from oomscope import virtual
virtual.load()
sys.path.insert(0, {repo!r})
import torch
from model import Net
model = Net(1024).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
stats = torch.cuda.memory_stats()
print([stats[f"{{name}}_bytes.all.peak"] for name in ("requested", "allocated", "active", "reserved")])
"""


def test_what_torch_says_of_itself_without_a_probe_is_the_same(tmp_path: Path) -> None:
    result = probe(tmp_path)
    plain = PLAIN.format(repo=str(tmp_path / "repo"))
    told = subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True, check=True).stdout
    peak = result.peak
    assert peak is not None
    assert json.loads(told) == [peak.requested_bytes, peak.allocated_bytes, peak.active_bytes, peak.reserved_bytes]


def test_two_runs_are_the_same_event_for_event(tmp_path: Path) -> None:
    snapshots = []
    for name in ("first", "second"):
        probe(tmp_path, snapshot_path=str(tmp_path / name))
        snapshots.append(load_snapshot(tmp_path / name))
    (one,), (other,) = (snapshot.traces for snapshot in snapshots)
    for column in ("action", "address", "size", "stream", "category", "moment_id", "stack_id", "forward_stack_id"):
        assert (getattr(one, column) == getattr(other, column)).all(), column
    assert snapshots[0].segments == snapshots[1].segments


def test_out_of_memory_is_reported_with_the_demand_of_the_whole_run(tmp_path: Path) -> None:
    whole = probe(tmp_path)
    assert whole.peak is not None
    result = probe(tmp_path, limit_bytes=GiB + PARAMETER_BYTES + 140 * MiB)
    assert (result.outcome, result.verdict and result.verdict.kind) == ("oom", "capacity")
    assert result.oom is not None
    assert (result.oom.iteration, result.oom.phase) == (0, "forward")
    assert "CUDA out of memory. Tried to allocate" in result.oom.message
    assert result.oom.requested_bytes in {2048 * 4096 * 4, 2048 * 1024 * 4}
    assert result.demand_bytes == whole.peak.requested_bytes


MANY_LAYERS = """
from functools import partial
import torch, oomscope
from torch.optim import SGD, AdamW

def setup(ctx):
    with torch.device(ctx.device):
        model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(16)])
    optimizer = OPTIMIZER(model.parameters(), foreach=False)
    def step():
        model(torch.ones(1, 2048, device=ctx.device)).sum().backward()
        optimizer.step()
    return oomscope.Target(step, model=model, optimizer=optimizer)
"""


@pytest.mark.parametrize(
    ("layers", "phase", "optimizer", "has_whole_run", "expected"),
    [
        (8, "init", "AdamW", False, {"parameter": 8}),
        (40, "optimizer", "AdamW", False, {"parameter": 16, "gradient": 16, "optimizer_state": 8}),
        # SGD says what it made when its step is over.
        (40, "optimizer", "partial(SGD, momentum=0.9)", False, {"parameter": 16, "gradient": 16, "temporary": 8}),
        (40, "optimizer", "partial(SGD, momentum=0.9)", True, {"parameter": 16, "gradient": 16, "optimizer_state": 8}),
    ],
)
def test_what_is_held_when_memory_runs_out_has_its_category(
    tmp_path: Path, layers: int, phase: str, optimizer: str, has_whole_run: bool, expected: dict[str, int]
) -> None:
    """Before the first forward as well, and inside the first step of the optimizer."""
    weight = 2048 * 2048 * 4
    limit = GiB + layers * weight
    harness = MANY_LAYERS.replace("OPTIMIZER", optimizer)
    result = probe(tmp_path, harness, limit_bytes=limit, measure_demand=has_whole_run)
    assert (result.outcome, result.oom and result.oom.phase) == ("oom", phase)
    assert result.peak is not None
    held = {category: size // weight for category, size in result.peak.categories.items() if size >= weight}
    assert held == expected


def test_the_targets_own_allocator_settings_are_in_force(tmp_path: Path) -> None:
    setting = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
    result = probe(tmp_path, setting + HARNESS)
    assert result.allocator_conf == "expandable_segments:True"
    assert "the target itself sets its allocator to expandable_segments:True" in result.notes[-1]
    asked = probe(tmp_path, allocator_conf="max_split_size_mb:64")
    assert (asked.allocator_conf, asked.notes) == ("max_split_size_mb:64", ())


@pytest.mark.parametrize(
    "kept",
    [
        "torch.zeros(8 + int((loss > 0).sum()), device=ctx.device)",
        "(rows := torch.randn(512, 256, device=ctx.device))[rows[:, 0] > 0]",
    ],
)
def test_sizes_that_depend_on_values_are_no_answer(tmp_path: Path, kept: str) -> None:
    zeroed = "        optimizer.zero_grad()\n"
    result = probe(tmp_path, HARNESS.replace(zeroed, f"{zeroed}        kept = {kept}\n"))
    assert (result.outcome, result.failure and result.failure.kind) == ("error", "untestable")
    assert result.failure is not None
    assert ", and a second run with other values asks for " in result.failure.message
    assert " at harness.py:14 step;" in result.failure.message
    assert "--compute-values" in result.failure.message


def test_a_card_without_kernels_is_unfit(tmp_path: Path) -> None:
    result = probe(tmp_path, gpu="v100-16gb")
    assert result.failure is not None
    assert result.failure.kind == "unfit"
    assert "has no kernels for a v100-16gb" in result.failure.message


def test_programs_that_end_right_after_backward_lose_nothing(tmp_path: Path) -> None:
    harness = HARNESS.split("        torch.nn.utils")[0] + "    return oomscope.Target(step, model=model)\n"
    results = [probe(tmp_path, harness, iterations=1) for _ in range(3)]
    assert {(result.outcome, result.peak and result.peak.requested_bytes) for result in results} == {
        ("fits", results[0].peak and results[0].peak.requested_bytes)
    }
    assert all(result.notes == () for result in results)


UNTOUCHED = """
from oomscope import virtual
virtual.load()
from oomscope.probe.process.forkserver import preload
preload()
import torch
print(torch.cuda.is_initialized(), virtual.state().entered)
"""


def test_a_warm_parent_calls_nothing_of_cuda() -> None:
    told = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "False"]


@pytest.fixture(scope="module")
def bundled() -> BundledTarget:
    from oomscope.config.load import load_preset

    return BundledTarget(config=load_preset("gpt-tiny").config.model_dump(mode="json"))


def test_the_bundled_model_reads_nothing_that_the_card_does_not_know(bundled: BundledTarget) -> None:
    result = forked.probe(ProbeJob(target=bundled, backend="virtual"))
    assert (result.outcome, result.notes) == ("fits", ())


NO_COMPILER = """
import json, sys
from oomscope import virtual
virtual.load()
import torch
from oomscope.capture import history
from oomscope.config.load import load_preset
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.trainer import Trainer

history.start(max_entries=100_000)
trainer = Trainer(load_preset("gpt-tiny").config, ParallelState(), device=torch.device("cuda"))
trainer.setup()
trainer.step(0)
document = history.document()
imported = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules or name[6:] in vars(torch)]
print(json.dumps([imported, sum(bool(event["frames"]) for event in document["device_traces"][0])]))
"""


def test_the_bundled_model_is_measured_without_torch_s_compiler() -> None:
    told = subprocess.run([sys.executable, "-c", NO_COMPILER], capture_output=True, text=True, check=True).stdout
    imported, stacks = json.loads(told.splitlines()[-1])
    assert imported == []
    assert stacks > 100


@pytest.mark.parametrize("module", ["cuda", "accelerator"])
def test_a_target_that_resets_peaks_is_measured_with_those_before(tmp_path: Path, module: str) -> None:
    reset = f"        torch.empty({GiB}, dtype=torch.int8, device=ctx.device)\n        torch.cuda.empty_cache()\n"
    reset += f"        torch.{module}.reset_peak_memory_stats()\n"
    result = probe(
        tmp_path, HARNESS.replace("    def step():\n", f"{reset.replace('        ', '    ')}    def step():\n")
    )
    assert result.peak is not None
    assert GiB < result.peak.requested_bytes <= result.peak.allocated_bytes <= result.peak.reserved_bytes


@pytest.mark.parametrize("is_warm", [True, False])
def test_warm_and_forked_probes_give_the_same_result(tmp_path: Path, is_warm: bool) -> None:
    result = probe(tmp_path, run=warm.run if is_warm else launch.run)
    assert result.peak is not None
    assert result.peak.categories["parameter"] == PARAMETER_BYTES
