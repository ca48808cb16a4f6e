from __future__ import annotations

import json
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
