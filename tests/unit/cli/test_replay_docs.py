"""The page on replays lists every key of the document, and every caveat."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.replay import replay_table
from oomscope.snapshot.replay.replay_table import replay_file

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "diff.md").read_text(encoding="utf-8")


def test_every_key_of_the_document_is_listed() -> None:
    snapshot = load_snapshot(ROOT / "fixtures" / "snapshots" / "tinytrain-v0.2.pickle.gz")
    document = replay_file(snapshot, confs=[]).to_json()
    listed = set(re.findall(r"`(\w+)`", PAGE.split("### In Python")[1]))
    assert {*document, *document["fidelity"], *document["rows"][0]} <= listed


def test_every_caveat_is_listed() -> None:
    codes = re.findall(r"code=\"(\w+)\"", inspect.getsource(replay_table))
    assert codes
    assert set(codes) <= set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE))
