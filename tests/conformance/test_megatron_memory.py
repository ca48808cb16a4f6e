"""The bundled transformer against the bytes that Megatron-LM's own CI recorded on A100 and H100 cards.

Megatron-LM logs ``allocated_bytes`` after each step and its running maximum, on the last rank. The same rank is
played here on the simulated device for two steps. One buffer that is not the model's is added as a constant:
Transformer Engine's cuBLAS workspace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.config.dialects.documents import read_arguments
from oomscope.config.dialects.importer import import_arguments
from oomscope.config.dialects.load import load_arguments
from oomscope.config.schema import Config
from oomscope.model.mesh import ParallelState, build_parallel_state
from oomscope.model.trainer import Trainer
from oomscope.probe.gpus import find_gpu
from oomscope.probe.ranks import chosen_ranks
from oomscope.probe.sessions import SessionSettings
from oomscope.probe.sim.session import SimSession
from oomscope.units import KiB, MiB, TiB

GPUS = 8
TE_WORKSPACE = {"a100-80gb": 4 * MiB, "h100-80gb": 32 * MiB + KiB}


class Row(NamedTuple):
    """A case on a card, and how far off the peak may be."""

    case: str
    gpu: str
    peak_tolerance: float = 0.005


ROWS = [
    Row("gpt3_mcore_tp1_pp1_dist_optimizer_overlap_grad_reduce_param_gather", "a100-80gb"),
    Row("gpt3_mcore_tp1_pp2", "a100-80gb"),
    Row("gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files", "a100-80gb"),
    Row("gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files", "h100-80gb"),
    Row("gpt3_mcore_te_tp1_pp1_uniform_full_recompute", "a100-80gb"),
    Row("gpt3_mcore_te_tp2_pp2", "a100-80gb"),
    Row("gpt3_7b_tp4_pp1_memory_speed", "h100-80gb"),
    # On A100 the flash attention keeps its output twice (Megatron's numbers imply 2nad/t more a layer): not modelled.
    Row("gpt3_7b_tp4_pp1_memory_speed", "a100-80gb", peak_tolerance=0.02),
]


@pytest.fixture(scope="module")
def recorded(ground_truth: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((ground_truth / "megatron" / "ci_memory.json").read_text())
    return {case["case"].removeprefix("gpt/"): case for case in document}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.case}-{row.gpu}")
def test_allocated_and_peak_bytes(row: Row, recorded: dict[str, dict[str, Any]]) -> None:
    arguments = recorded[row.case]["arguments"]
    measured = recorded_on(row.gpu, recorded[row.case])
    allocated, peak = simulate(config_of(arguments), row.gpu, arguments["ENV:CUBLAS_WORKSPACE_CONFIG"])
    assert allocated == pytest.approx(measured["alloc_last"], rel=0.02)
    assert peak == pytest.approx(measured["max_last"], rel=row.peak_tolerance)


def test_every_argument_of_every_case_is_accounted_for(recorded: dict[str, dict[str, Any]]) -> None:
    for case in recorded.values():
        imported = import_arguments(read_arguments(json.dumps(case["arguments"]), "ci_memory.json"), "megatron")
        assert imported.not_understood == ()
        assert imported.not_modelled == ()


@pytest.mark.parametrize("row", ROWS[:1] + ROWS[2:4], ids=lambda row: f"{row.case}-{row.gpu}")
def test_states_to_the_kilobyte(row: Row, recorded: dict[str, dict[str, Any]]) -> None:
    """With one pipeline stage and sharded states nothing else stays but two cuBLAS workspaces and a few scalars."""
    arguments = recorded[row.case]["arguments"]
    config = config_of(arguments)
    measured = recorded_on(row.gpu, recorded[row.case])
    known = state_bytes(config) + 2 * 32 * MiB + (local_scratch(config) or TE_WORKSPACE[row.gpu])
    assert 0 <= measured["alloc_last"] - known <= 4 * KiB


def recorded_on(gpu: str, case: dict[str, Any]) -> dict[str, Any]:
    """Return what was recorded on a card like ``gpu``."""
    (entry,) = [entry for entry in case["rows"] if gpu.split("-")[0].upper() in entry["env"]]
    return entry


def state_bytes(config: Config) -> int:
    """Return the bytes of parameters, main gradients, masters and moments on one replica, in 512-byte blocks."""
    replicas = config.parallel.data_parallel_size
    state = ParallelState(world_size=replicas, dp_size=replicas, dp_cp_size=replicas)
    trainer = Trainer(config, state, device=torch.device("meta"))
    trainer.setup()
    weights = [group["params"] for group in trainer.optimizer.param_groups]
    masters = [master for params in weights for master in params]
    storages = {p.untyped_storage()._cdata: p.untyped_storage() for p in trainer.model[0].parameters()}
    grads = {p.main_grad.untyped_storage()._cdata: p.main_grad.untyped_storage() for p in trainer.model[0].parameters()}
    kept = [storage.nbytes() for storage in (*storages.values(), *grads.values())]
    kept += 3 * [master.numel() * 4 for master in masters]
    return sum(-(-size // 512) * 512 for size in kept)


def config_of(arguments: dict[str, str]) -> Config:
    """Return what the Megatron-LM arguments mean on the CI's machine."""
    given = read_arguments(json.dumps(arguments), "ci_memory.json")
    given.world_size = GPUS
    return load_arguments(given, "megatron").config


def local_scratch(config: Config) -> int:
    """Return the bytes of the score buffer that local layers keep."""
    if config.model.transformer_impl == "transformer_engine":
        return 0
    heads = config.model.num_attention_heads // config.parallel.tensor_model_parallel_size
    return 2 * config.data.micro_batch_size * heads * config.data.seq_length**2


@pytest.fixture(autouse=True)
def _no_group_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def simulate(config: Config, gpu: str, workspace: str) -> tuple[int, int]:
    """Return the last rank's allocated bytes after two steps, and the peak."""
    (rank,), world_size = chosen_ranks("last", config), config.parallel.world_size
    session = SimSession(
        SessionSettings(gpu=find_gpu(gpu), limit_bytes=TiB, cublas_workspace_config=workspace, rank=rank)
    )
    dist.init_process_group("sim:fake,cpu:fake", store=FakeStore(), rank=rank, world_size=world_size)
    state = build_parallel_state(config, rank=rank, world_size=world_size)
    with session:
        trainer = Trainer(config, state, device=session.device, observer=session.observer)
        trainer.setup()
        outside = 0 if local_scratch(config) else TE_WORKSPACE[gpu]
        kept = torch.empty(outside, dtype=torch.uint8, device=session.device)
        for iteration in range(2):
            with session.iteration(iteration):
                trainer.step(iteration)
        allocated = sum(segment.allocated_size for segment in session.memory.segments())
        del kept
    return allocated, session.memory.allocator.allocated_peak
