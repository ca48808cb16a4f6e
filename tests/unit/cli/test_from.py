"""``--from`` means the same to every command that takes a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.cli.sources import config_source
from oomscope.errors import ExitCode
from oomscope.probe.tuning import variants
from tests.unit.probe.played import measured

TINY = """\
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 128
  --num-attention-heads: 4
  --vocab-size: 5000
  --tokenizer-type: NullTokenizer
  --seq-length: 128
  --max-position-embeddings: 128
  --micro-batch-size: 2
  --global-batch-size: 4
  --transformer-impl: local
"""


@pytest.fixture
def arguments(tmp_path: Path) -> Path:
    file = tmp_path / "args.yaml"
    file.write_text(TINY)
    return file


@pytest.fixture
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "launched", lambda job, stop: measured(job))


def test_show_prints_what_the_arguments_mean(arguments: Path, capsys) -> None:
    words = ["config", "show", "--from", "megatron", str(arguments), "--world-size", "2", "--json"]
    assert run([*words, "data.seq_length=64"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert config["parallel"]["data_parallel_size"] == 2
    assert config["data"]["seq_length"] == 64


def test_check_names_what_is_not_modelled_and_where(arguments: Path, capsys) -> None:
    arguments.write_text(f"{TINY}  --fp32-residual-connection: true\n")
    assert run(["config", "check", "--from", "megatron", str(arguments)]) == ExitCode.USAGE
    out = capsys.readouterr().out
    name = "fp32_residual_connection"
    assert f"{arguments}:12 (--fp32-residual-connection): not modelled import: {name} is true, which is not" in out
    assert out.count(f"{name} is true") == 1
    assert "cannot be measured: 1 broken" in out


@pytest.mark.parametrize("command", [["config", "show"], ["config", "check"], ["advise"], ["sweep", "recompute=none"]])
@pytest.mark.usefixtures("_played")
def test_what_is_not_understood_is_reported_once(command: list[str], arguments: Path, capsys) -> None:
    arguments.write_text(f"{TINY}  --no-such-argument: 3\n")
    assert run([*command, "--from", "megatron", str(arguments)]) == 0
    assert capsys.readouterr().err.count("no_such_argument is 3") == 1


@pytest.mark.usefixtures("_played")
def test_advice_and_a_grid_take_the_world_from_the_command_line(arguments: Path, capsys) -> None:
    common = ["--from", "megatron", str(arguments), "--world-size", "2", "--quiet", "--json"]
    assert run(["advise", *common, "--limit", "1200MiB", "device.non_torch_bytes=0"]) == 0
    assert json.loads(capsys.readouterr().out)["now"]["outcome"] == "oom"
    assert run(["sweep", *common, "data.micro_batch_size=1,2"]) == 0
    assert [row["variant"]["outcome"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["fits", "fits"]


def test_one_function_of_a_recipe_is_taken(tmp_path: Path, capsys) -> None:
    recipes = tmp_path / "recipes.py"
    shape = {"hidden_size": 64, "num_attention_heads": 2, "vocab_size": 500, "seq_length": 32}
    lines = [f"def {name}():\n    cfg.model.num_layers = {size}" for name, size in (("small", 2), ("large", 8))]
    recipes.write_text("\n".join([*lines, *(f"cfg.model.{key} = {value}" for key, value in shape.items())]))
    words = ["config", "show", "--from", "bridge", "--json"]
    assert run([*words, f"{recipes}:small"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["model"]["num_layers"] == 2
    assert run([*words, str(recipes)]) == ExitCode.USAGE
    assert f"choose one, as in {recipes}:large" in capsys.readouterr().err
    source = config_source([f"{recipes}:large"], dialect="bridge")
    assert (source.path, source.title) == (recipes, f"{recipes}:large")
