"""The estimate of time repeats what was published, and the page that says so; no saving is free of what it does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oomscope.config.load import load_preset
from oomscope.config.schema import Config
from oomscope.model.cost.step_time import StepCost, step_cost

A100 = {"gpu": "a100-80gb"}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective"}


def cost_of(config: Config) -> StepCost:
    cost = step_cost(config, rank=0)
    assert cost is not None
    return cost


def korthikanti_22b(*, sequence_parallel: bool = False, **recompute) -> StepCost:
    """Return the cost of the model of Table 4 of Korthikanti et al. 2022."""
    model = {"num_layers": 48, "hidden_size": 6144, "num_attention_heads": 64, "vocab_size": 51200}
    config = Config.model_validate(
        {
            "model": {**model, "attention_backend": "unfused"},
            "parallel": {"tensor_model_parallel_size": 8, "sequence_parallel": sequence_parallel},
            "data": {"seq_length": 2048, "micro_batch_size": 4},
            "recompute": recompute,
            "device": A100,
        }
    )
    return cost_of(config)


def llama(*overrides: str) -> StepCost:
    return cost_of(load_preset("llama3-70b", [*overrides, "device.gpu=a100-80gb"]).config)


def selective(*modules: str) -> float:
    chosen = f"recompute.recompute_modules=[{','.join(modules)}]"
    return llama("data.seq_length=4096", "recompute.recompute_granularity=selective", chosen).slowdown


def resplit(*sizes: str) -> float:
    """Time of a step over that of TP 4, PP 4, DP 4 and 32 microbatches, where half the replicas do twice as many."""
    four = llama("parallel.tensor_model_parallel_size=4", "parallel.data_parallel_size=4", "data.num_microbatches=32")
    halved = ("parallel.tensor_model_parallel_size=4", "parallel.data_parallel_size=2", "data.num_microbatches=64")
    return llama(*halved, *sizes).seconds / four.seconds - 1


def qwen_on_the_host(fraction: float) -> StepCost:
    """Qwen3-30B-A3B on 16 H100 with ``fraction`` of its optimizer on the host, as Megatron-Bridge measured it."""
    sizes = {"tensor_model": 2, "pipeline_model": 2, "expert_model": 4, "expert_tensor": 1, "data": 4}
    overrides = [f"parallel.{name}_parallel_size={size}" for name, size in sizes.items()]
    overrides += ["parallel.sequence_parallel=true", "optimizer.optimizer_cpu_offload=true"]
    overrides += [f"optimizer.optimizer_offload_fraction={fraction}"]
    return cost_of(load_preset("qwen3-30b-a3b-shaped", overrides).config)


# Published measurements, and the page ----------------------------------------------------------------------------

PAGE = (Path(__file__).parents[4] / "docs" / "advise.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.split("## Against published measurements")[1].splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 3
}
SHARES: dict[str, tuple[Callable[[], float], float]] = {
    "full recomputation of it": (lambda: korthikanti_22b(**FULL).slowdown, 6),
    "selective recomputation, attention unfused": (lambda: korthikanti_22b(**SELECTIVE).slowdown, 2),
    "the same with sequence parallelism": (lambda: korthikanti_22b(sequence_parallel=True, **SELECTIVE).slowdown, 2),
    "`mlp` recomputation of Llama 3 70B (Megatron-Bridge)": (lambda: selective("mlp"), 6),
    "`mlp, core_attn` of it": (lambda: selective("mlp", "core_attn"), 6),
    "`core_attn` of it, attention fused": (lambda: selective("core_attn"), 1),
    "`layernorm` on top of that": (lambda: selective("core_attn", "layernorm") - selective("core_attn"), 1),
    "tensor parallelism doubled, Llama 3 70B": (lambda: resplit("parallel.tensor_model_parallel_size=8"), 36),
    "pipeline parallelism doubled and replicas halved": (
        lambda: resplit("parallel.pipeline_model_parallel_size=8"),
        7,
    ),
}
"""What estimates a claim, and how many points of the share that was measured it may be off."""
LAYER = "a layer of the 22B model on A100, TP 8 (Korthikanti et al. 2022, Table 4)"
HOSTED = {"the optimizer of Qwen3-30B-A3B on the host, 16 H100 (Megatron-Bridge)": 1.0, "half of it": 0.5}


@pytest.mark.parametrize("claim", SHARES)
def test_a_share_on_the_page_is_the_estimate_and_near_what_was_measured(claim: str) -> None:
    estimate, within = SHARES[claim]
    measured, estimated = (float(re.findall(r"[-+][\d.]+", cell)[-1]) for cell in ROWS[claim])
    assert estimated == pytest.approx(100 * estimate(), abs=0.51)
    assert estimated == pytest.approx(measured, abs=within)


def test_seconds_on_the_page_are_the_estimate_and_near_what_was_measured() -> None:
    assert ROWS[LAYER][1] == f"{1000 * korthikanti_22b().seconds / 48:.1f} ms"
    for claim, fraction in HOSTED.items():
        seconds = qwen_on_the_host(fraction).optimizer_offload_s
        assert ROWS[claim][1] == f"{seconds:.2f} s"
        assert seconds == pytest.approx(float(re.findall(r"[\d.]+", ROWS[claim][0])[0]), rel=0.1)
    assert set(ROWS) - set(SHARES) - set(HOSTED) - {LAYER} == {"claim"}


# What savings do -------------------------------------------------------------------------------------------------


def test_parts_sum_to_the_whole_and_the_rest_is_the_step_without_savings() -> None:
    cost = llama(*[f"recompute.{key}={value}" for key, value in FULL.items()])
    document = cost.to_json()
    assert document["seconds"] == pytest.approx(sum(value for key, value in document.items() if key.endswith("_s")))
    assert cost.seconds / (1 + cost.slowdown) == pytest.approx(llama().seconds)
    assert llama().slowdown == 0
    assert selective("layernorm") == 0


def test_an_estimate_needs_no_torch() -> None:
    """``advise`` and ``sweep`` estimate in the process that the user waits for."""
    script = "import sys, oomscope.model.cost.step_time; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
