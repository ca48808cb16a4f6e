"""The page on differences lists every key, and lines are found again as git says that they moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.read.load import load_snapshot

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "diff.md").read_text(encoding="utf-8")


def test_every_key_of_the_document_is_listed() -> None:
    files = [str(ROOT / "fixtures" / "snapshots" / f"tinytrain-{name}.pickle.gz") for name in ("v0.1", "v0.2")]
    document = diff(*(Named(file, load_snapshot(file)) for file in files)).to_json()
    (device,) = document["devices"]
    parts = (document, device, device["before"], device["lines"][0], device["phases"][0], device["timeline"])
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
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
