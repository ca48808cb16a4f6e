"""The harnesses of the case studies meet every age of the interfaces that they drive."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomscope.probe.targets.harness import check_harness

FOLDER = Path(__file__).resolve().parents[4] / "fixtures" / "harnesses"
FILES = sorted(FOLDER.glob("*_harness.py"))


def names_of(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}_harness.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_they_are_harnesses(file: Path) -> None:
    check_harness(file)


def test_mingpt_is_configured_by_a_class_or_by_a_default() -> None:
    configure = names_of("mingpt")["_config"]
    first = SimpleNamespace(GPTConfig=lambda *sizes, **shape: (sizes, shape))
    assert configure(first) == ((50257, 1024), {"n_layer": 12, "n_head": 12, "n_embd": 768})

    def named(model_type: str) -> SimpleNamespace:
        return SimpleNamespace(n_layer=1)

    def plain() -> SimpleNamespace:
        return SimpleNamespace(model_type="gpt-mini", n_layer=None)

    for default in (named, plain):
        config = configure(SimpleNamespace(GPT=SimpleNamespace(get_default_config=default)))
        assert (config.n_layer, config.block_size) == (12, 1024)
        assert getattr(config, "model_type", None) is None


def test_x_transformers_takes_its_layers_by_three_signatures() -> None:
    model = names_of("x_transformers")["_model"]

    def today(*, num_tokens: int, max_seq_len: int, attn_layers: str) -> str:
        return f"{attn_layers} today"

    def before(*, num_tokens: int, max_seq_len: int, layer_blocks: str) -> str:
        return f"{layer_blocks} before"

    def first(*, num_tokens: int, max_seq_len: int, dim: int, layer_blocks: str) -> str:
        return f"{layer_blocks} of {dim} at first"

    made = [
        model(SimpleNamespace(Decoder=lambda **shape: "decoder", TransformerWrapper=wrapper))
        for wrapper in (today, before, first)
    ]
    assert made == ["decoder today", "decoder before", "decoder of 512 at first"]
