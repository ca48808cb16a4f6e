"""torch's own FSDP2 on a virtual card: what it keeps and gathers, in the bundled model and in anybody's."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomscope.config.schema import Config
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action, Category, Moment, Trace
from tests import forked
from tests.ledgers.sharded import gathered_in_backward, gathered_in_forward, shard_ledger

RANKS = 8
STEP_COUNTS = 2 * 4
"""Of the parameters with weight decay, and of those without."""
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MODEL: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1024,
    "make_vocab_size_divisible_by": 1,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "share_embeddings_and_output_weights": False,
}


def make_config(*, bf16: bool = True, recompute: dict[str, Any] | None = None, **parallel: Any) -> Config:
    return Config.model_validate(
        {
            "model": MODEL,
            "parallel": {"data_parallel_size": RANKS, "use_torch_fsdp2": True, **parallel},
            "precision": {"bf16": bf16},
            "recompute": recompute or {},
            "data": {"seq_length": 16, "micro_batch_size": 1, "num_microbatches": 1},
        }
    )


def recorded(job: ProbeJob) -> Trace:
    """Return the events of two steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.pickle")
        result = forked.probe(replace(job, snapshot_path=str(path)))
        assert result.outcome == "fits", result.failure
        return load_snapshot(path).traces[0]


def traced(config: Config) -> Trace:
    target = BundledTarget(config=config.model_dump(mode="json"))
    return recorded(ProbeJob(target=target, backend="virtual", world_size=config.parallel.world_size))


def lives(trace: Trace) -> Iterator[tuple[Moment, Counter[str]]]:
    """Yield the moment of each event and the requested bytes by category after it."""
    live: dict[int, tuple[str, int]] = {}
    total: Counter[str] = Counter()
    for index in range(len(trace)):
        address = int(trace.address[index])
        if trace.action[index] == Action.ALLOC:
            live[address] = (Category(int(trace.category[index])).label, int(trace.size[index]))
            total[live[address][0]] += live[address][1]
        elif trace.action[index] == Action.FREE_COMPLETED:
            category, size = live.pop(address)
            total[category] -= size
        yield trace.moments[trace.moment_id[index]], total


def peaks(trace: Trace, phase: str, *categories: str) -> int:
    """Return the most requested bytes of ``categories`` together in the second step's ``phase``."""
    return max(sum(live[c] for c in categories) for at, live in lives(trace) if (at.iteration, at.phase) == (1, phase))


@pytest.fixture(scope="module")
def resharded() -> Trace:
    return traced(make_config())


@pytest.mark.parametrize("bf16", [True, False])
def test_a_rank_keeps_its_share(bf16: bool, resharded: Trace) -> None:
    config = make_config(bf16=bf16)
    ledger = shard_ledger(config)
    *_, (_, last) = lives(resharded if bf16 else traced(config))
    assert last["parameter"] == ledger["parameters"]
    assert last["optimizer_state"] == ledger["master_weights"] + ledger["moments"] + STEP_COUNTS
    assert last["gradient"] == ledger["gradients_of_update"]
    assert peaks(resharded, "backward", "gradient") == shard_ledger(make_config())["gradients"]


def test_one_unit_is_gathered_at_a_time(resharded: Trace) -> None:
    config = make_config()
    shards = shard_ledger(config)["parameters"]
    forward, backward = gathered_in_forward(config), gathered_in_backward(config)
    gathered = peaks(resharded, "forward", "parameter", "communication") - shards
    assert 0 <= gathered - sum(forward.values()) < 1024, "the offsets that split_with_sizes_copy puts on the card"
    assert peaks(resharded, "backward", "parameter") == shards + backward["model"] + backward["gathered_parameters"]
    together = peaks(resharded, "backward", "parameter", "communication")
    assert together >= shards + sum(backward[name] for name in ("model", "gathered_parameters", "gathering"))


def test_without_resharding_all_units_stay_until_backward(resharded: Trace) -> None:
    config = make_config(torch_fsdp2_reshard_after_forward=False)
    kept = traced(config)
    shards = shard_ledger(config)["parameters"]
    assert peaks(kept, "loss", "parameter") == shards + RANKS * shards
    assert peaks(kept, "backward", "communication") < peaks(resharded, "backward", "communication")
    assert gathered_in_backward(config)["gathering"] == 0


@pytest.mark.parametrize("recomputed", [False, True])
def test_units_are_gathered_beside_the_computation(recomputed: bool, resharded: Trace) -> None:
    """All-gathers and reduced gradients are on streams of their own, all that is computed is on the default one."""
    trace = traced(make_config(recompute=FULL)) if recomputed else resharded
    streams: dict[str, set[int]] = {}
    for index in range(len(trace)):
        if trace.action[index] == Action.ALLOC:
            label = Category(int(trace.category[index])).label
            streams.setdefault(label, set()).add(int(trace.stream[index]))
    assert streams["activation"] == streams["temporary"] == streams["optimizer_state"] == {0}
    assert len(streams["communication"] | streams["gradient"]) > 2, "no stream of their own"


HARNESS = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from oomscope import Target


def setup(ctx):
    layers = (torch.nn.Linear(256, 256, bias=False, device=ctx.device) for _ in range(4))
    model = torch.nn.Sequential(*layers)
    mesh = init_device_mesh("cuda", (ctx.world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(8, 256, device=ctx.device)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Target(step, model=model, optimizer=optimizer)
"""


def test_a_program_of_ones_own_is_measured_with_its_policy(tmp_path: Path) -> None:
    """fp32 parameters, gathered in bf16 and reduced in fp32, as torchtitan does it."""
    (tmp_path / "harness.py").write_text(HARNESS)
    target = HarnessTarget(harness=str(tmp_path / "harness.py"), repo=str(tmp_path))
    trace = recorded(ProbeJob(target=target, backend="virtual", world_size=RANKS))
    width, layers = 256, 4
    shard, unit = layers * width * width // RANKS, width * width
    assert peaks(trace, "optimizer", "parameter") == 4 * shard
    assert peaks(trace, "optimizer", "gradient") == 4 * shard
    moments = peaks(trace, "optimizer", "optimizer_state")
    assert 8 * shard <= moments <= 8 * shard + 4 * layers, "two moments, and a step count of each parameter"
    assert peaks(trace, "forward", "parameter") == 4 * shard + 2 * unit
