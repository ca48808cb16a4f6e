from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oomscope.report.text.console import result_console, show
from oomscope.report.text.layout import section

HOSTILE = "name\x1b[2J\x1b]0;title\x07\x9b31m"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def table() -> Table:
    grid = Table("head")
    grid.add_row(HOSTILE)
    return grid


@pytest.mark.parametrize("report", [HOSTILE, Text(HOSTILE, style="red"), table(), Panel(HOSTILE)])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_control_sequence_of_the_measured_reaches_the_terminal(report, is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, color_system="standard", markup=False)
    show(console, report)
    shown = COLOURS.sub("", console.file.getvalue())
    assert r"name\x1b[2J\x1b]0;title" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_what_rich_draws_itself_stays() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    show(console, Text("warning", style="red"))
    assert console.file.getvalue() == "\x1b[31mwarning\x1b[0m\n"


@pytest.mark.parametrize("is_in_actions", [True, False])
def test_what_is_measured_gives_no_command_to_the_runner(monkeypatch: pytest.MonkeyPatch, is_in_actions: bool) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if is_in_actions else "")
    stream = io.StringIO()
    show(Console(file=stream, width=80), Text("failed\n  ::stop-commands::x\na::b\n:one ##[add-mask]a"))
    commands = [line for line in stream.getvalue().splitlines() if line.strip().startswith("::") or "##[" in line]
    assert len(commands) == (0 if is_in_actions else 2)
    assert "a::b\n:one " in stream.getvalue()
    assert "stop-commands::x" in stream.getvalue()


SENTENCE = " ".join(f"word{number}" for number in range(60))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(file: io.StringIO) -> str:
    show(result_console(file), section("Next", Text(SENTENCE, style="bold red")))
    return file.getvalue()


@pytest.mark.parametrize("columns", [None, "60"])
def test_without_a_terminal_sentences_are_whole_and_on_one_line(
    monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert shown(io.StringIO()) == f"\nNext\n{SENTENCE}\n"


@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_who_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, file: type[io.StringIO]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31m" in shown(file())
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(file())
    assert COLOURS.findall(text) == ([] if file is io.StringIO else ["\x1b[1m", "\x1b[0m"] * (text.count("\x1b") // 2))
    assert "31" not in "".join(COLOURS.findall(text))


def test_an_empty_wish_for_no_colour_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b[1;31m" in shown(io.StringIO())
