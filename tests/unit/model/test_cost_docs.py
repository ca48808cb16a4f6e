"""The estimates on the page about cost are what the model says of the cases that were measured and published."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.model.test_cost import FULL, SELECTIVE, korthikanti_22b, llama, qwen_on_the_host

PAGE = (Path(__file__).parents[3] / "docs" / "cost.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.split("## Against published measurements")[1].splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 3
}


def selective(*modules: str) -> float:
    chosen = f"recompute.recompute_modules=[{','.join(modules)}]"
    return llama("data.seq_length=4096", "recompute.recompute_granularity=selective", chosen).slowdown


def resplit(*sizes: str) -> float:
    """Time of a step over that of TP 4, PP 4, DP 4 and 32 microbatches, where half the replicas do twice as many."""
    four = llama("parallel.tensor_model_parallel_size=4", "parallel.data_parallel_size=4", "data.num_microbatches=32")
    halved = ("parallel.tensor_model_parallel_size=4", "parallel.data_parallel_size=2", "data.num_microbatches=64")
    return llama(*halved, *sizes).seconds / four.seconds - 1


SHARES: dict[str, Callable[[], float]] = {
    "full recomputation of it": lambda: korthikanti_22b(**FULL).slowdown,
    "selective recomputation, attention unfused": lambda: korthikanti_22b(**SELECTIVE).slowdown,
    "the same with sequence parallelism": lambda: korthikanti_22b(sequence_parallel=True, **SELECTIVE).slowdown,
    "`mlp` recomputation of Llama 3 70B (Megatron-Bridge)": lambda: selective("mlp"),
    "`mlp, core_attn` of it": lambda: selective("mlp", "core_attn"),
    "`core_attn` of it, attention fused": lambda: selective("core_attn"),
    "`layernorm` on top of that": lambda: selective("core_attn", "layernorm") - selective("core_attn"),
    "tensor parallelism doubled, Llama 3 70B": lambda: resplit("parallel.tensor_model_parallel_size=8"),
    "pipeline parallelism doubled and replicas halved": lambda: resplit("parallel.pipeline_model_parallel_size=8"),
}
HOSTED = {
    "the optimizer of Qwen3-30B-A3B on the host, 16 H100 (Megatron-Bridge)": 1.0,
    "half of it": 0.5,
}


@pytest.mark.parametrize("claim", SHARES)
def test_a_share_on_the_page_is_the_estimate(claim: str) -> None:
    _, estimated = ROWS[claim]
    assert float(re.findall(r"[-+][\d.]+", estimated)[0]) == pytest.approx(100 * SHARES[claim](), abs=0.51)


def test_the_layer_on_the_page_is_the_estimate() -> None:
    claim = "a layer of the 22B model on A100, TP 8 (Korthikanti et al. 2022, Table 4)"
    assert ROWS[claim][1] == f"{1000 * korthikanti_22b().seconds / 48:.1f} ms"


@pytest.mark.parametrize("claim", HOSTED)
def test_the_seconds_of_the_host_on_the_page_are_the_estimate(claim: str) -> None:
    assert ROWS[claim][1] == f"{qwen_on_the_host(HOSTED[claim]).optimizer_offload_s:.2f} s"


def test_every_estimate_on_the_page_is_held() -> None:
    others = {"claim", "a layer of the 22B model on A100, TP 8 (Korthikanti et al. 2022, Table 4)"}
    assert set(ROWS) - set(SHARES) - others - set(HOSTED) - {"---"} == set()


def test_recomputing_more_costs_more_as_measured() -> None:
    """Megatron-Bridge: 704 TFLOP/s, 593.6 with ``mlp``, 586.8 with ``mlp`` and ``core_attn``, 702 with norms."""
    assert selective("core_attn") < selective("mlp") < selective("mlp", "core_attn")
    assert selective("core_attn", "layernorm") == pytest.approx(selective("core_attn"), abs=0.01)
    measured = 593.6 / 586.8 - 1
    assert selective("mlp", "core_attn") - selective("mlp") == pytest.approx(measured, abs=0.01)
