from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from oomscope.cli.main import COMMANDS, cli
from oomscope.cli.terminal.progress import Telling, Ticker
from oomscope.probe.job import Progress

LONG = {
    "probe": (),
    "advise": (),
    "sweep": (),
    "explain": (),
    "diff": (),
    "replay": (),
    "bisect": ("resume",),
    "gate": ("run", "update", "calibrate"),
}
"""Commands that may take more than two seconds; of groups, which of theirs."""
RECORDED = Path("fixtures/snapshots")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ticker(clock: Clock, telling: Telling = "terminal", **options: Any) -> tuple[Ticker, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, width=80, color_system=None, **{"force_terminal": True, "_environ": {"TERM": "xterm"}, **options}
    )
    return Ticker("cfg.yaml", console, telling, clock=clock, is_all=True), file


def commands_that_take_long() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    found = []
    for name, inner in LONG.items():
        command = cli.get_command(context, name)
        assert isinstance(command, click.Command)
        if name != "gate":  # a group alone
            found.append((name, command))
        found += [(f"{name} {each}", command.get_command(context, each)) for each in inner]  # type: ignore[attr-defined]
    return found


def test_a_command_that_takes_long_tells_as_much_as_it_is_asked_to() -> None:
    assert set(LONG) <= set(COMMANDS)
    for name, command in commands_that_take_long():
        options = {option: each for each in command.params for option in each.opts}
        for option in ("--quiet", "--verbose"):
            assert option in options, f"oomscope {name} has no {option}"
            assert options[option].name == "telling"


def test_what_is_counted_gets_an_estimate_once_one_is_done(clock: Clock) -> None:
    told, _ = ticker(clock)
    told.stage("case", 0, 4)
    clock.now = 3.0
    assert str(told._view()) == "cfg.yaml: case 0 of 4, 3 s"
    clock.now = 6.0
    told.stage("case", 1, 4)
    clock.now = 8.0
    assert str(told._view()) == "cfg.yaml: case 1 of 4, 8 s, about 15 s more"
    told.stage("case", 4, 4)
    assert str(told._view()) == "cfg.yaml: case 4 of 4, 8 s"


def test_another_stage_begins_to_count_anew(clock: Clock) -> None:
    told, _ = ticker(clock)
    told(Progress(stage="warm-up", done=0, total=2))
    clock.now = 9.0
    told(Progress(stage="warm-up", done=1, total=2))
    told(Progress(stage="step", done=0, total=2))
    assert str(told._view()) == "cfg.yaml: step 0 of 2, 9 s"


def test_a_terminal_is_left_as_it_was(clock: Clock) -> None:
    told, file = ticker(clock)
    with told:
        told.line("1 of 2: fits")
    shown = file.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is back"
    assert "1 of 2: fits" in shown


@pytest.mark.parametrize("telling", ["quiet", "terminal", "verbose"])
def test_a_dumb_terminal_is_none(clock: Clock, telling: Telling) -> None:
    told, file = ticker(clock, telling, _environ={"TERM": "dumb"})
    with told:
        told.stage("read")
        told.line("a row")
    assert file.getvalue() == ("cfg.yaml: read\na row\n" if telling == "verbose" else "")


def test_the_later_of_two_options_counts() -> None:
    probe = cli.get_command(click.Context(cli), "probe")
    assert probe is not None
    for words, telling in (["--quiet", "--verbose"], "verbose"), (["--verbose", "--quiet"], "quiet"), ([], None):
        assert probe.make_context("probe", list(words)).params["telling"] == telling


def on_a_terminal(*words: str, width: int = 80, **variables: str) -> str:
    """Return what a terminal is sent by ``oomscope``."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    environment = {**kept, "TERM": "xterm-256color", "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8", **variables}
    command = [sys.executable, "-m", "oomscope", *words]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment):
        os.close(theirs)
        sent = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not more:
                break
            sent += more
    os.close(ours)
    return sent.decode()


def test_explaining_shows_what_goes_on_and_takes_it_away() -> None:
    snapshot = min(RECORDED.glob("*.pickle*"))
    sent = on_a_terminal("explain", str(snapshot))
    assert re.search(r"analyse [\d,]+ events, \d+ s", sent)
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h")
    plain = on_a_terminal("explain", str(snapshot), "--quiet", NO_COLOR="1")
    assert "analyse" not in plain
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain), "no colour"
