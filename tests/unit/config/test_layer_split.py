"""Which layers a rank holds, evenly and not, in one chunk and in several."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.rules.layer_split import chunk_layers, stage_layers
from oomscope.config.schema import Config, ModelConfig, ParallelConfig
from oomscope.errors import ConfigError

BOTH_ENDS_COUNT = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


def split_config(layers: int, stages: int, **parallel: Any) -> Config:
    return Config(
        model=ModelConfig(num_layers=layers, hidden_size=8, num_attention_heads=2),
        parallel=ParallelConfig(pipeline_model_parallel_size=stages, **parallel),
    )


def layers_of_all(config: Config) -> list[list[list[int]]]:
    return [
        [list(chunk) for chunk in stage_layers(config, rank)]
        for rank in range(config.parallel.pipeline_model_parallel_size)
    ]


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 4), st.booleans(), st.booleans())
def test_chunks_hold_all_layers_once_and_in_order(
    per_chunk: int, stages: int, chunks: int, embedding: bool, loss: bool
) -> None:
    virtual = chunks if stages > 1 else 1
    layers = per_chunk * stages * virtual - embedding - loss
    if layers < 1:
        return
    config = split_config(
        layers,
        stages,
        virtual_pipeline_model_parallel_size=chunks,
        account_for_embedding_in_pipeline_split=embedding,
        account_for_loss_in_pipeline_split=loss,
    )
    in_order = [chunk_layers(config, rank, chunk) for chunk in range(virtual) for rank in range(stages)]
    assert [layer for held in in_order for layer in held] == list(range(layers))
    expected = [per_chunk] * len(in_order)
    expected[0] -= embedding
    expected[-1] -= loss
    assert [len(held) for held in in_order] == expected


def test_the_examples_of_megatron_core() -> None:
    """``get_num_layers_to_build``: eight layers on two stages, in four and in two model chunks."""
    assert layers_of_all(split_config(8, 2, virtual_pipeline_model_parallel_size=4)) == [
        [[0], [2], [4], [6]],
        [[1], [3], [5], [7]],
    ]
    by_layers = split_config(8, 2, num_layers_per_virtual_pipeline_stage=2)
    assert layers_of_all(by_layers) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize(
    ("layers", "stages", "parallel", "expected"),
    [
        (8, 4, {"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 1}, [1, 3, 3, 1]),
        (7, 3, {"num_layers_in_last_pipeline_stage": 3}, [2, 2, 3]),
        (7, 2, {"num_layers_in_first_pipeline_stage": 3}, [3, 4]),
        (6, 2, {"num_layers_in_first_pipeline_stage": 2, "num_layers_in_last_pipeline_stage": 4}, [2, 4]),
        (7, 4, {"account_for_embedding_in_pipeline_split": True}, [1, 2, 2, 2]),
        (6, 4, BOTH_ENDS_COUNT, [1, 2, 2, 1]),
    ],
)  # fmt: skip
def test_uneven_stages(layers: int, stages: int, parallel: dict[str, Any], expected: list[int]) -> None:
    held = layers_of_all(split_config(layers, stages, **parallel))
    assert [len(chunk) for (chunk,) in held] == expected


def test_the_first_and_last_stages_layers_are_shared_out_over_their_chunks() -> None:
    config = split_config(
        12, 3, virtual_pipeline_model_parallel_size=2, num_layers_in_first_pipeline_stage=2,
        num_layers_in_last_pipeline_stage=6,
    )  # fmt: skip
    assert layers_of_all(config) == [[[0], [6]], [[1, 2], [7, 8]], [[3, 4, 5], [9, 10, 11]]]


@pytest.mark.parametrize(
    ("layers", "stages", "parallel", "message"),
    [
        (5, 2, {}, "5 layers cannot be shared out evenly over 2 pipeline stages"),
        (8, 4, {"num_layers_in_first_pipeline_stage": 3}, "5 layers cannot be shared out evenly over 3"),
        (8, 2, {"num_layers_in_first_pipeline_stage": 9}, "-1 layers cannot be shared out"),
        (8, 3, {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 4}, "0 layers .* over 1"),
        (8, 2, {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 3}, "1 layers .* over 0"),
        (
            6,
            1,
            {"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 3},
            "0 layers .* over -1",
        ),
        (6, 2, {"virtual_pipeline_model_parallel_size": 2}, "3 layers of a pipeline stage .* over 2 model chunks"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(layers: int, stages: int, parallel: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layers_of_all(split_config(layers, stages, **parallel))


def test_without_a_pipeline_there_is_one_chunk() -> None:
    assert layers_of_all(split_config(3, 1, virtual_pipeline_model_parallel_size=2)) == [[[0, 1, 2]]]
