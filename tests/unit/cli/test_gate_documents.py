"""What the page of the gate says of the documents is what the commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from oomscope.cli.main import run
from oomscope.gate.night.result import Culprit
from oomscope.probe.tuning import variants
from oomscope.units import GiB, MiB
from tests.integration.program import commit, new_repo
from tests.unit.gate.nights import measured

PAGE = (Path(__file__).parents[3] / "docs" / "gate.md").read_text(encoding="utf-8")
SUITE = "cases: [{name: train, config: train.yaml}, {name: new, preset: gpt-tiny}]\n"
COMMANDS = {
    "run": ("run", "memory.yaml", "--result", "night.json"),
    "report": ("report", "night.json"),
    "calibrate": ("calibrate", "memory.yaml", "--repeats", "5"),
    "update": ("update", "memory.yaml"),
    "history": ("history",),
    "import": ("import", "night.json"),
}
"""In the order in which they are run."""
NESTED = {"metrics[]", "metrics", "standing", "culprit", "nights[]"}
"""Fields whose own are told in the row."""


def told(command: str) -> dict[str, set[str]]:
    """Return the fields that the page lists of a command, each with those that its row tells of it."""
    found: dict[str, set[str]] = {}
    section = PAGE.partition("## The documents")[2].partition("\n## ")[0]
    (table,) = [table for table in section.split("\n\n") if table.startswith("| `") and f"`gate {command}`" in table]
    for row in table.splitlines()[2:]:
        names, meaning = row.strip("| ").split(" | ", 1)
        for name in re.findall(r"`([^`]+)`", names):
            is_nested = name.rpartition(".")[2] in NESTED
            found[name] = set(re.findall(r"`([a-z_]+)`", meaning)) if is_nested else set()
    return found


def printed(document: dict[str, Any], prefix: str = "") -> dict[str, set[str]]:
    """Return the fields of ``document`` as the page lists them."""
    found: dict[str, set[str]] = {}
    for name, value in document.items():
        if not prefix and name in {"cases", "trends"}:
            for row in value:
                for key, fields in printed(row, f"{name}[].").items():
                    found[key] = found.get(key, set()) | fields
        elif name in NESTED or f"{name}[]" in NESTED:
            rows = value if isinstance(value, list) else list(value.values()) if name == "metrics" else [value]
            found[f"{prefix}{name}{'[]' if isinstance(value, list) else ''}"] = {
                key for row in rows for key in row or {}
            }
        else:
            found[f"{prefix}{name}"] = set()
    return found


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> dict[str, dict[str, Any]]:
    """What each command prints, in a repository with a case that became worse."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = new_repo(tmp_path / "repo")
    commit(repo, "Begin", {"memory.yaml": SUITE, "train.yaml": "preset: gpt-tiny\n"})
    monkeypatch.chdir(repo)
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB))
    run(["gate", "update", "memory.yaml", "--case", "train", "--quiet"])
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    monkeypatch.setattr(
        "oomscope.gate.culprit.culprit_of", lambda *_: Culprit(outcome="not searched", message="no end")
    )
    found = {}
    for command, words in COMMANDS.items():
        capsys.readouterr()
        more = ["--bisect"] if command == "run" else []
        quiet = [] if command in {"report", "history", "import"} else ["--quiet"]
        run(["gate", *words, *more, *quiet, "--json"])
        found[command] = json.loads(capsys.readouterr().out)
    return found


def test_every_field_is_listed_and_no_other(documents: dict[str, dict[str, Any]]) -> None:
    for command, document in documents.items():
        assert document.pop("schema_version") == (1 if command in {"update", "import"} else 2)
        listed = told(command)
        if command in {"run", "report"}:
            assert listed.pop("kind") == set()
            assert document.pop("kind") == "gate"
        assert printed(document) == listed, command
