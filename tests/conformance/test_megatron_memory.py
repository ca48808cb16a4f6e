"""The bundled transformer against the bytes that Megatron-LM's own CI recorded on A100 and H100 cards."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from oomscope.config.importers.command_lines import read_arguments
from oomscope.config.importers.importer import import_arguments
from oomscope.config.schema import Config
from oomscope.model.parallel.parallel_state import ParallelState, Place
from oomscope.model.trainer import Trainer
from oomscope.units import KiB, MiB

CUBLAS_WORKSPACES = 2 * 32 * MiB
TE_WORKSPACE = {"a100-80gb": 4 * MiB, "h100-80gb": 32 * MiB + KiB}
GPUS = tuple(TE_WORKSPACE)


def _load_script() -> ModuleType:
    path = Path(__file__).with_name("megatron_ci.py")
    spec = importlib.util.spec_from_file_location("megatron_ci", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


megatron_ci = _load_script()
Cases = dict[tuple[str, str], Any]
"""Cases by name and card."""


@pytest.fixture(scope="module")
def recorded(ground_truth: Path) -> Path:
    return ground_truth / "megatron" / "ci_memory.json"


@pytest.fixture(scope="module")
def cases(recorded: Path) -> Cases:
    return {(case.name.removeprefix("gpt/"), case.gpu): case for case in megatron_ci.cases(recorded)}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    "name",
    [
        "gpt3_mcore_tp1_pp1_dist_optimizer_overlap_grad_reduce_param_gather",
        "gpt3_mcore_tp1_pp2",
        "gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files",
        "gpt3_mcore_te_tp1_pp1_uniform_full_recompute",
        "gpt3_mcore_te_tp2_pp2",
        "gpt3_7b_tp4_pp1_memory_speed",
    ],
)
def test_state_and_peak_of_the_last_rank(cases: Cases, name: str, gpu: str) -> None:
    if (name, gpu) not in cases:
        pytest.skip(f"not recorded on {gpu}")
    if torch.__version__ >= (2, 15):
        pytest.skip("recorded with a torch that keeps the workspaces of cuBLAS: make test-torch VERSION=2.11.0")
    outcome = megatron_ci.probe(cases[name, gpu])
    assert outcome.holds, megatron_ci.line_of(outcome)
    assert abs(outcome.peak_error) <= 0.005, megatron_ci.line_of(outcome)


def test_every_argument_of_every_case_is_accounted_for(cases: Cases) -> None:
    for case in cases.values():
        imported = import_arguments(read_arguments(json.dumps(case.arguments), "ci_memory.json"), "megatron")
        assert imported.not_understood == ()
        assert imported.not_modelled == ()


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("gpt3_mcore_tp1_pp1_dist_optimizer_overlap_grad_reduce_param_gather", "a100-80gb"),
        ("gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files", "a100-80gb"),
        ("gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files", "h100-80gb"),
    ],
)
def test_states_to_the_kilobyte(cases: Cases, name: str, gpu: str) -> None:
    """With one pipeline stage and sharded states nothing else stays but the workspaces and a few scalars."""
    config = megatron_ci.config_of(cases[name, gpu].arguments)
    known = state_bytes(config) + CUBLAS_WORKSPACES + (local_scratch(config) or TE_WORKSPACE[gpu])
    assert 0 <= cases[name, gpu].state_bytes - known <= 4 * KiB


def test_a_case_off_by_too_much_does_not_hold(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    row = {"env": "8x H100-80GB", "alloc_last": 4 * MiB, "max_last": 1000 * MiB}
    file.write_text(json.dumps([{"case": "toy", "arguments": {}, "rows": [row]}]))
    (case,) = megatron_ci.cases(file)

    def holds(state: int, peak: int) -> bool:
        return megatron_ci.Outcome(case=case, state_bytes=state, peak_bytes=peak).holds

    assert case.gpu == "h100-80gb"
    assert holds(20 * MiB, 1010 * MiB)
    assert not holds(20 * MiB + 1, 1000 * MiB)
    assert not holds(4 * MiB, 989 * MiB)


def test_an_argument_that_is_not_modelled_is_a_row_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cases.json"
    row = {"env": "8x A100-80GB", "alloc_last": 1, "max_last": 1}
    file.write_text(json.dumps([{"case": "toy", "arguments": {"--squared-relu": "true"}, "rows": [row]}]))
    assert megatron_ci.main([str(file)]) == 1
    assert "none toy a100-80gb: " in capsys.readouterr().out


def state_bytes(config: Config) -> int:
    """Return the bytes of parameters, main gradients, masters and moments on one replica, in 512-byte blocks."""
    replicas = config.parallel.data_parallel_size
    state = ParallelState(world_size=replicas, **dict.fromkeys(("dp", "dp_cp", "intra_dp_cp"), Place(size=replicas)))
    trainer = Trainer(config, state, device=torch.device("meta"))
    trainer.setup()
    masters = [master for group in trainer.optimizer.param_groups for master in group["params"]]
    kept: dict[int, Any] = {}
    for param in trainer.model[0].parameters():
        for tensor in (param, param.main_grad):
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
    sizes = [storage.nbytes() for storage in kept.values()] + 3 * [master.numel() * 4 for master in masters]
    return sum(-(-size // 512) * 512 for size in sizes)


def local_scratch(config: Config) -> int:
    """Return the bytes of the score buffer that local layers keep."""
    if config.model.transformer_impl == "transformer_engine":
        return 0
    heads = config.model.num_attention_heads // config.parallel.tensor_model_parallel_size
    return 2 * config.data.micro_batch_size * heads * config.data.seq_length**2
