"""The page on imports shows what the command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oomscope.cli.main import run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\$ oomscope (.+)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_example_is_what_the_command_prints(command: str, shown: str, capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert run(command.split()) == 0
    assert capsys.readouterr().out == shown


def test_the_example_of_remarks_is_what_the_command_says(capsys, monkeypatch) -> None:
    (shown,) = re.findall(r"^On standard error:\n\n```console\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert run(EXAMPLES[0][0].split()) == 0
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("dialect", ["megatron", "bridge", "nemo"])
def test_the_dialect_of_each_example_is_found_out(dialect: str, capsys) -> None:
    assert run(["config", "import", str(ROOT / "fixtures" / "arguments" / f"{dialect}.yaml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dialect"] == dialect
    assert set(document) <= {*re.findall(r"`(\w+)`", PAGE), "schema_version", "source", "dialect"}
