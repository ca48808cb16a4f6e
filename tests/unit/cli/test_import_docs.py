"""The page on imports has every dialect, and every key of the document."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oomscope.cli.main import run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("dialect", ["megatron", "bridge", "nemo"])
def test_the_dialect_of_each_example_is_found_out(dialect: str, capsys) -> None:
    assert run(["config", "import", str(ROOT / "fixtures" / "arguments" / f"{dialect}.yaml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dialect"] == dialect
    assert set(document) <= {*re.findall(r"`(\w+)`", PAGE), "schema_version", "source", "dialect"}
