"""The text of a pipeline layout: what it stands for, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.load import load_text
from oomscope.config.rules.layer_split import check_layout, chunk_layers, most_layers_of_chunk
from oomscope.config.schema import Config, ModelConfig, ParallelConfig
from oomscope.config.schema.parallel import stages_of
from oomscope.errors import ConfigError


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Ettt|(tt|)*3,m|L", ("Ettt", "tt", "tt", "tt", "m", "L")),
        ("Et*3|(tt|)*6L", ("Ettt", *["tt"] * 6, "L")),
        ("E|t*2|*3tL", ("E", "tt", "", "", "tL")),
        ("(t*2|)*2L", ("tt", "tt", "L")),
        ("Et*0L", ("EL",)),
        ("", ("",)),
    ],
)
def test_what_a_layout_stands_for(layout: str, stages: tuple[str, ...]) -> None:
    assert stages_of(layout) == stages


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Ex|L", "at 'x|L': write E, t, m, L"),
        ("E t|L", "at ' t|L'"),
        ("E(tt|)L", "at '\\(tt\\|\\)L'"),
        ("E((t|)*2t)*2L", "at '\\(\\(t"),
        ("Et*9999999999|L", "more than 65536 characters"),
        ("E" + "(t*60000)*60000" + "L", "more than 65536 characters"),
    ],
)
def test_what_is_no_layout(layout: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stages_of(layout)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12))
def test_a_layout_written_out_and_with_repeats_gives_the_same_layers(counts: list[int]) -> None:
    if not sum(counts):
        counts[0] = 1
    stages = len(counts)
    text = "E" + "|".join(f"t*{count}" if count else "" for count in counts) + "L"
    names = [["decoder"] * count for count in counts]
    names[0].insert(0, "embedding")
    names[-1].append("loss")

    def config(layout: object) -> Config:
        return Config(
            model=ModelConfig(num_layers=sum(counts), hidden_size=8, num_attention_heads=2),
            parallel=ParallelConfig.model_validate(
                {"pipeline_model_parallel_size": stages, "pipeline_model_parallel_layout": layout}
            ),
        )

    for written in (text, names):
        held = [list(chunk_layers(config(written), rank, 0)) for rank in range(stages)]
        assert [len(chunk) for chunk in held] == counts
        assert [layer for chunk in held for layer in chunk] == list(range(sum(counts)))
        assert most_layers_of_chunk(config(written)) == max(counts)


def test_virtual_stages_go_round_the_ranks() -> None:
    config = Config(
        model=ModelConfig(num_layers=5, hidden_size=8, num_attention_heads=2),
        parallel=ParallelConfig(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Ett|t||ttL"),
    )
    assert config.model_chunks == 2
    assert [[list(chunk_layers(config, rank, chunk)) for chunk in range(2)] for rank in range(2)] == [
        [[0, 1], []],
        [[2], [3, 4]],
    ]


def test_a_bad_layout_is_told_with_its_line() -> None:
    text = """model: {num_layers: 2, hidden_size: 8, num_attention_heads: 2}
parallel:
  pipeline_model_parallel_layout: Et|x
"""
    with pytest.raises(ConfigError, match=r"cfg.yaml:3.*at 'x'"):
        load_text(text, source="cfg.yaml")


@pytest.mark.parametrize(
    ("layout", "wrong"),
    [("Et*4|mL", "1 depths"), ("Et*3|mmtL", "behind multi-token"), ("Et*3|tmmL", ""), ("Et*4|mmL", "")],
)
def test_depths_of_multi_token_prediction_follow_the_layers(layout: str, wrong: str) -> None:
    model = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "mtp_num_layers": 2}
    parallel = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": layout}
    config = Config.model_validate({"model": model, "parallel": parallel})
    with pytest.raises(ConfigError, match=wrong) if wrong else nullcontext():
        check_layout(config)
