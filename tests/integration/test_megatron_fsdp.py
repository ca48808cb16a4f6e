"""Megatron-FSDP on a virtual card: what a rank keeps, gathers and collects, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from oomscope.config.schema import Config
from oomscope.snapshot.trace import Trace
from tests.integration.test_fully_sharded import FULL, MODEL, RANKS, STEP_COUNTS, lives, peaks, traced

LAYERS = MODEL["num_layers"]
LAYER = 97 * 1024 * RANKS
"""Elements of a layer's bucket: its rows of 1024, and norms, up to a multiple of ranks and rows."""
REST = 257 * 256 * RANKS
"""The same of embedding, output layer and final norm."""
WHOLE = LAYERS * LAYER + REST
UNPADDED = 3 * (786_432 + 2 * 256) + 2 * 1024 * 256 + 256
MINE = WHOLE // RANKS
"""Elements of the first rank's shard, which has no padding at its end."""


def make_config(recompute: dict[str, Any] | None = None, microbatches: int = 1, **parallel: Any) -> Config:
    return Config.model_validate(
        {
            "model": MODEL,
            "parallel": {
                "data_parallel_size": RANKS,
                "use_megatron_fsdp": True,
                "data_parallel_sharding_strategy": "optim_grads_params",
                **parallel,
            },
            "optimizer": {"log_params_norm": True},
            "recompute": recompute or {},
            "data": {"seq_length": 16, "micro_batch_size": 1, "num_microbatches": microbatches},
        }
    )


@pytest.fixture(scope="module")
def sharded() -> Trace:
    return traced(make_config(microbatches=2))


def at_the_end(trace: Trace) -> dict[str, int]:
    *_, (_, last) = lives(trace)
    return last


@pytest.mark.parametrize(
    ("strategy", "dtype", "parameters", "gradients", "states"),
    [
        ("no_shard", "auto", UNPADDED, UNPADDED, UNPADDED),
        ("optim", "fp32", WHOLE, WHOLE, MINE),
        ("optim_grads", "auto", WHOLE, MINE, MINE),
    ],
)
def test_a_rank_keeps_what_the_strategy_leaves_it(
    strategy: str, dtype: str, parameters: int, gradients: int, states: int
) -> None:
    config = make_config(data_parallel_sharding_strategy=strategy, megatron_fsdp_main_grads_dtype=dtype)
    last = at_the_end(traced(config))
    counts = STEP_COUNTS if strategy == "no_shard" else STEP_COUNTS // 2  # the first shard has no norms
    in_16_bits = dtype == "auto"
    assert last["parameter"] == 2 * parameters
    assert last["main_gradient"] == (2 if in_16_bits else 4) * gradients
    assert last["optimizer_state"] == (4 + 8) * states + counts
    assert last["gradient"] == (4 * states if in_16_bits else 0), "cast for the update, until the next step"


def test_with_sharded_parameters_it_keeps_its_share_and_what_is_in_no_unit(sharded: Trace) -> None:
    last = at_the_end(sharded)
    assert last["parameter"] == 2 * (MINE + REST)
    assert last["main_gradient"] == 2 * MINE
    assert last["optimizer_state"] == (4 + 8) * MINE + STEP_COUNTS // 2


def test_parameters_are_gathered_ahead_and_dropped_behind(sharded: Trace) -> None:
    """What is in no unit stays; of units all are there when forward begins, none when the loss is taken.

    But for the very first microbatch, where the final norm still gathers ahead, from the first bucket on.
    """
    kept = 2 * (MINE + REST)
    assert peaks(sharded, "forward", "parameter") == kept + 2 * LAYERS * LAYER
    assert peaks(sharded, "loss", "parameter") == kept
    first = [live["parameter"] for at, live in lives(sharded) if (at.iteration, at.phase) == (0, "loss")]
    assert max(first) == kept + 2 * LAYERS * LAYER


def test_whole_gradients_wait_for_the_end_of_backward(sharded: Trace) -> None:
    assert 2 * WHOLE <= peaks(sharded, "backward", "gradient") <= 2 * (WHOLE + LAYER)
    assert peaks(sharded, "optimizer", "gradient") == 4 * MINE


def test_little_communication_at_once_keeps_little() -> None:
    small = traced(make_config(suggested_communication_unit_size=1, microbatches=2))
    kept = 2 * (MINE + REST)
    assert peaks(small, "forward", "parameter") == kept + 2 * LAYER
    assert peaks(small, "backward", "parameter") == kept + 2 * LAYER
    assert peaks(small, "backward", "gradient") == 2 * (REST + 2 * LAYER + 1024 * 256), "and one of autograd's own"


def test_recomputed_units_are_dropped_when_the_next_is_gathered() -> None:
    small = traced(make_config(recompute=FULL, suggested_communication_unit_size=1, microbatches=2))
    kept = 2 * (MINE + REST)
    assert peaks(small, "forward", "parameter") == kept + 2 * LAYER
    assert kept + 2 * LAYER <= peaks(small, "backward", "parameter") <= kept + 4 * LAYER


def test_units_are_gathered_on_a_stream_of_their_own(sharded: Trace) -> None:
    from oomscope.snapshot.trace import Action, Category

    of_parameters = {
        int(sharded.stream[index])
        for index in range(len(sharded))
        if sharded.action[index] == Action.ALLOC and Category(int(sharded.category[index])) is Category.PARAMETER
    }
    assert len(of_parameters) == 2
    assert 0 in of_parameters, "shards are made where the computation is"
