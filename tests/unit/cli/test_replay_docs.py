"""The page on replays shows what the command prints, and lists every key of its document."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from oomscope.cli.main import run
from oomscope.snapshot.reading.load import load_snapshot
from oomscope.snapshot.replaying import replay_table
from oomscope.snapshot.replaying.replay_table import replay_file

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")


def test_the_example_is_what_the_command_prints(capsys, monkeypatch) -> None:
    ((command, shown),) = re.findall(r"^\$ oomscope (.+)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert run(command.split()) == 0
    assert capsys.readouterr().out == shown


def test_every_key_of_the_document_is_listed() -> None:
    snapshot = load_snapshot(ROOT / "fixtures" / "snapshots" / "tinytrain-v0.2.pickle.gz")
    document = replay_file(snapshot, confs=[]).to_json()
    listed = set(re.findall(r"`(\w+)`", PAGE.split("## In Python")[1]))
    assert {*document, *document["fidelity"], *document["rows"][0]} <= listed


def test_every_caveat_is_listed() -> None:
    codes = re.findall(r"code=\"(\w+)\"", inspect.getsource(replay_table))
    assert codes
    assert set(codes) <= set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE))
