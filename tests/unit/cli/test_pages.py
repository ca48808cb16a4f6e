"""Pages of commands list every key of their documents, every caveat and every confidence."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.replay import replay_table
from oomscope.snapshot.replay.replay_table import replay_file

ROOT = Path(__file__).parents[3]
EXPLAIN = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
IMPORT = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
DIFF = (ROOT / "docs" / "diff.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("level", [each for each in Confidence if each is not Confidence.NONE])
def test_every_confidence_is_explained(level: Confidence) -> None:
    assert f"| `{level.label}` |" in EXPLAIN


@pytest.mark.parametrize("dialect", ["megatron", "bridge", "nemo"])
def test_the_dialect_of_each_example_is_found_out(dialect: str, capsys) -> None:
    assert run(["config", "import", str(ROOT / "fixtures" / "arguments" / f"{dialect}.yaml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dialect"] == dialect
    assert set(document) <= {*re.findall(r"`(\w+)`", IMPORT), "schema_version", "source", "dialect"}


def test_every_key_of_the_document_of_replay_is_listed() -> None:
    snapshot = load_snapshot(ROOT / "fixtures" / "snapshots" / "tinytrain-v0.2.pickle.gz")
    document = replay_file(snapshot, confs=[]).to_json()
    listed = set(re.findall(r"`(\w+)`", DIFF.split("### In Python")[1]))
    assert {*document, *document["fidelity"], *document["rows"][0]} <= listed


def test_every_caveat_is_listed() -> None:
    codes = re.findall(r"\(\"(\w+)\", ", inspect.getsource(replay_table._caveats))
    assert codes
    assert set(codes) <= set(re.findall(r"^\| `(\w+)`", DIFF, re.MULTILINE))


def test_every_key_of_the_document_of_diff_is_listed() -> None:
    files = [str(ROOT / "fixtures" / "snapshots" / f"tinytrain-{name}.pickle.gz") for name in ("v0.1", "v0.2")]
    document = diff(*(Named(file, load_snapshot(file)) for file in files)).to_json()
    (device,) = document["devices"]
    parts = (document, device, device["before"], device["lines"][0], device["phases"][0], device["timeline"])
    prose = re.sub(r"```.*?```", "", DIFF, flags=re.DOTALL)
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert {key for part in parts for key in part} <= listed


@pytest.mark.parametrize("releases", [("v0.1", "v0.2"), ("v0.2", "v0.1")])
def test_lines_of_a_real_history_are_found_again(releases) -> None:
    """What git says of model.py between the releases: 14 lines fewer above MLP, attention in a file of its own."""
    files = [str(ROOT / "fixtures" / "snapshots" / f"tinytrain-{name}.pickle.gz") for name in releases]
    (device,) = diff(*(Named(file, load_snapshot(file)) for file in files)).devices
    places = {
        ((row.was or row.site).file, (row.was or row.site).line, row.site.file, row.site.line)
        for row in device.lines
        if row.presence == "both"
    }
    model, attention = "tinytrain/model.py", "tinytrain/attention.py"
    expected = {(model, old, model, new) for old, new in ((29, 16), (41, 28), (42, 29), (54, 48), (57, 51))}
    expected |= {(model, 16, attention, 16), (model, 18, attention, 18)}
    if releases[0] == "v0.2":
        expected = {(file, line, was, before) for was, before, file, line in expected}
    assert expected <= places
