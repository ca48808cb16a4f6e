from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from oomscope.cli.main import run


def test_show_prints_a_configuration_that_loads_again(tmp_path: Path, capsys) -> None:
    assert run(["config", "show", "--preset", "gpt-tiny", "data.seq_length=96"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["data"]["seq_length"] == 96
    file = tmp_path / "shown.yaml"
    file.write_text(text)
    assert run(["config", "show", str(file)]) == 0
    assert capsys.readouterr().out == text


def test_check_names_rule_reason_and_place(capsys) -> None:
    broken = ["recompute.recompute_granularity=full"]
    assert run(["config", "check", "--preset", "gpt-tiny", *broken]) == 2
    out = capsys.readouterr().out
    assert "override recompute.recompute_granularity=full: error R" in out
    assert "cannot be measured" in out


def test_check_as_json(capsys) -> None:
    broken = ["recompute.recompute_granularity=full"]
    assert run(["config", "check", "--preset", "gpt-tiny", "--json", *broken]) == 2
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert finding["severity"] == "error"
    assert finding["where"] == "override recompute.recompute_granularity=full"
    assert finding["source"]


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_schema_is_json(flag: list[str], capsys) -> None:
    assert run(["config", "schema", *flag]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "model" in (document["schema"] if flag else document)["properties"]


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("device.gpu=h1000", "no card is called 'h1000'"),
        ("allocator.conf=expandable_segments:Maybe", "column 21"),
        ("device.cublas_workspace_config=big", "cannot read 'big'"),
    ],
)
def test_what_a_probe_would_refuse_is_refused(command: str, override: str, said: str, capsys) -> None:
    assert run(["config", command, "--preset", "gpt-tiny", override]) == 2
    err = capsys.readouterr().err
    assert f"oomscope: override {override}: {override.partition('=')[0]}: " in err
    assert said in err


SHAPE = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
TINY = f"{SHAPE} --micro-batch-size 1 --bf16 --vocab-size 512 --transformer-impl local".split()


def test_a_command_line_becomes_a_configuration(capsys) -> None:
    assert run(["config", "import", "--", "torchrun", "--nproc-per-node", "2", "train.py", *TINY, "--foo", "1"]) == 0
    captured = capsys.readouterr()
    config = yaml.safe_load(captured.out)
    assert config["model"]["num_layers"] == 2
    assert config["parallel"]["data_parallel_size"] == 2
    assert "not understood: --foo 1: foo is 1" in captured.err


def test_a_file_is_written_and_can_be_checked(tmp_path: Path, capsys) -> None:
    arguments = tmp_path / "args.sh"
    arguments.write_text(" ".join(TINY))
    output = tmp_path / "cfg.yaml"
    assert run(["config", "import", str(arguments), "--world-size", "4", "-o", str(output)]) == 0
    assert run(["config", "check", str(output)]) == 0
    assert yaml.safe_load(output.read_text())["parallel"]["data_parallel_size"] == 4
    assert run(["config", "import", str(arguments), "-o", str(output)]) == 2
    assert "file exists" in capsys.readouterr().err


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"model.activations_checkpoint_method=block")))
    assert run(["config", "import", "-", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dialect"] == "nemo"
    assert document["config"] == {"recompute": {"recompute_method": "block"}}


def test_one_of_several_functions_is_named(tmp_path: Path, capsys) -> None:
    file = tmp_path / "recipes.py"
    file.write_text("".join(f"def f{size}():\n    cfg.train.micro_batch_size = {size}\n" for size in (1, 2)))
    assert run(["config", "import", str(file)]) == 2
    named = f"{file}:f2"
    assert f"choose one, as in {named};" in capsys.readouterr().err
    assert run(["config", "import", named, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == {"data": {"micro_batch_size": 2}}


def test_json_accounts_for_every_argument(capsys) -> None:
    assert (
        run(["config", "import", "--json", "--", *TINY, "--foo", "1", "--save", "x", "--fp32-residual-connection"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document["not_understood"]] == ["foo"]
    assert [row["name"] for row in document["without_memory"]] == ["save"]
    assert [row["name"] for row in document["not_modelled"]] == ["fp32_residual_connection"]
    assert document["origins"]["model.num_layers"] == "--num-layers 2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to import"),
        (["no-such-file.yaml"], "No such file"),
        (["--dialect", "hydra", "x.yaml"], "hydra"),
        (["--", "--num-layers", "x"], "must be a whole number"),
    ],
)
def test_a_wrong_call_is_said_in_a_line(arguments: list[str], said: str, capsys) -> None:
    assert run(["config", "import", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_probe_refuses_what_is_not_modelled(tmp_path: Path, capsys) -> None:
    file = tmp_path / "args.sh"
    file.write_text(" ".join([*TINY, "--fp32-residual-connection"]))
    assert run(["probe", "--from", "megatron", str(file)]) == 2
    assert "fp32_residual_connection is true, which is not modelled" in capsys.readouterr().err


def test_arguments_of_which_none_is_known_are_refused(tmp_path: Path, capsys) -> None:
    file = tmp_path / "foo.yaml"
    file.write_text("foo: 1\n")
    assert run(["config", "import", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "none of its arguments is one of" in err
    own = tmp_path / "own.yaml"
    own.write_text("allocator:\n  conf: expandable_segments:True\n")
    assert run(["config", "import", str(own)]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "preset: gpt-tiny\nmodel:\n  num_query_groups: 2\n",
        "model:\n  num_layers: 4\ndata:\n  seq_length: 128\n",
        "model:\n  num_layres: 4\nparallel:\n  tensor_model_parallel_size: 2\n",
    ],
)
def test_a_configuration_of_our_own_is_not_made_into_another(tmp_path: Path, text: str, capsys) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    assert run(["config", "import", str(own)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"oomscope: {own}: is a configuration of oomscope, which needs no import; give")


def test_a_dialect_that_is_named_is_believed(tmp_path: Path) -> None:
    shared = tmp_path / "nemo.yaml"
    shared.write_text("model:\n  num_layers: 4\n")
    assert run(["config", "import", str(shared)]) == 2
    assert run(["config", "import", "--dialect", "nemo", str(shared)]) == 0


def test_a_log_with_colours_and_a_progress_bar_is_read(tmp_path: Path, capsys) -> None:
    file = tmp_path / "job.log"
    file.write_text("\x1b[32mstart\x1b[0m\r 1%\r 2%\n  num_layers ...................... 12\n")
    assert run(["config", "import", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["model"]["num_layers"] == 12
