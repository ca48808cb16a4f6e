"""What reaches a terminal or a pipe: whole at any width, without control characters, and with no number broken."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from oomscope.gate.night.status import Status
from oomscope.report.commands.bisect import bisect_report
from oomscope.report.commands.diff import diff_report
from oomscope.report.commands.gate import gate_report
from oomscope.report.commands.probe import probe_report
from oomscope.report.parts import Heading, Line, Span, Table, bar, columns, cut
from oomscope.report.text.console import result_console, show
from oomscope.report.text.layout import span_text
from oomscope.report.text.probes import ProbeLine
from tests.unit.gate.nights import case_result, night
from tests.unit.report import differences, results, searches
from tests.unit.report.printed import on_terminal, printed

HOSTILE = "name[bold]\x1b[2J\x1b]0;title\x07\x9b31m"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TABLE = [Table(columns=columns("head"), rows=[(HOSTILE,)])]


@pytest.mark.parametrize("report", [HOSTILE, Text(HOSTILE, style="red"), TABLE, Panel(HOSTILE)])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_control_sequence_of_the_measured_reaches_the_terminal(report, is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, color_system="standard", markup=False)
    show(console, report)
    shown = COLOURS.sub("", console.file.getvalue())
    assert r"name[bold]\x1b[2J\x1b]0;title" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)


@pytest.mark.parametrize("is_in_actions", [True, False])
def test_what_is_measured_gives_no_command_to_the_runner(monkeypatch: pytest.MonkeyPatch, is_in_actions: bool) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if is_in_actions else "")
    text = printed(Text("failed\n  ::stop-commands::x\na::b\n:one ##[add-mask]a"), 80)
    commands = [line for line in text.splitlines() if line.strip().startswith("::") or "##[" in line]
    assert len(commands) == (0 if is_in_actions else 2)
    assert "a::b\n:one " in text
    assert "stop-commands::x" in text


SENTENCE = " ".join(f"word{number}" for number in range(60))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(file: io.StringIO) -> str:
    show(result_console(file), [Heading(text="Next"), Line(text=SENTENCE, tone="bad", is_status=True)])
    return file.getvalue()


@pytest.mark.parametrize("width", [None, "60"])
def test_without_a_terminal_sentences_are_whole_and_on_one_line(
    monkeypatch: pytest.MonkeyPatch, width: str | None
) -> None:
    if width:
        monkeypatch.setenv("COLUMNS", width)
    assert shown(io.StringIO()) == f"\nNext\n{SENTENCE}\n"


@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_who_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, file: type[io.StringIO]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for empty in ("", None):
        if empty is not None:
            monkeypatch.setenv("NO_COLOR", empty)
        assert "\x1b[1;31m" in shown(file())
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(file())
    assert COLOURS.findall(text) == ([] if file is io.StringIO else ["\x1b[1m", "\x1b[0m"] * (text.count("\x1b") // 2))
    assert "31" not in "".join(COLOURS.findall(text))


REPORTS = {
    "fits": probe_report(results.FITS, title="cfg.yaml"),
    "oom": probe_report(results.OOM, title="cfg.yaml"),
    "commits": bisect_report(searches.COMMITS),
    "keys": bisect_report(searches.KEYS),
    "diff": diff_report(differences.GREW, by=None, shown=12),
    "night": gate_report(night(1, case_result(1, Status.WORSE, name="llama3-70b-tp8-pp4"), case_result(2))),
}
SIZE = re.compile(r"[\d.,]+ [KMGT]iB")


def sizes(lines: list[str]) -> set[str]:
    """Return the sizes, also those that a sentence breaks between number and unit."""
    return set(SIZE.findall(" ".join(" ".join(lines).split())))


@pytest.mark.parametrize("name", REPORTS)
def test_a_narrow_terminal_shows_the_same_sizes(name: str) -> None:
    report = list(REPORTS[name])
    wide = on_terminal(report, 200)
    for width in (40, 60, 80):
        lines = [line for line in on_terminal(report, width) if not line.startswith("  oomscope ")]
        assert sizes(wide) - sizes(lines) == set()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [30, 60, 200])
def test_no_number_is_broken_however_narrow_the_terminal_is(width: int) -> None:
    rows = [
        ("llama3-70b-tp8", "62.17 GiB", "64.00 GiB", "+1.83 GiB"),
        ("tiny", "512.00 MiB", "512.00 MiB", ""),
    ]
    table = Table(columns=columns("Case", "number:Expected", "number:Measured", "number:Difference"), rows=rows)
    lines = on_terminal([table], width)
    for number in ("62.17 GiB", "64.00 GiB", "+1.83 GiB", "512.00 MiB"):
        assert any(number in line for line in lines)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_a_probe_keeps_its_cells_whole_on_a_narrow_terminal(width: int) -> None:
    probe = next(record for record in searches.PROBES if record.peak)
    long = replace(probe, reason="fits, and the reason says more than a line holds " * 2)
    lines = on_terminal(ProbeLine(long), width)
    assert all(len(line) <= width for line in lines)
    assert sum("requested " in line and "reserved " in line for line in lines) == 1
    margin = len(lines[0]) - len(lines[0].lstrip()) + lines[0].lstrip().index(probe.commit[:10])
    assert all(line.startswith(" " * margin) for line in lines[1:])
    assert len(on_terminal(ProbeLine(probe), 200)) == 1


def test_rows_beyond_those_shown_are_added_up_but_one_alone_is_shown() -> None:
    rows = [(number, 1, "kept" if number else "", f"line {number}") for number in range(5)]
    table = Table(
        columns=columns("size:Bytes", "count:Blocks", "category:Category", "code:Line"), rows=rows, is_sum=True
    )
    assert cut(table, 2, "line").rows == [*rows[:2], [9, 3, "", "3 further lines"]]
    assert cut(table, 4, "line").rows == rows


@pytest.mark.parametrize(
    ("span", "drawn"),
    [
        (bar(1, 2), "████"),
        (bar(0, 2), ""),
        (bar(1, 0), ""),
        (Span(start=0.5, end=1, tone="bad"), "    ████"),
        (Span(start=0.5, end=1, tone="good"), "    ░░░░"),
        (Span(start=0.5, end=0.5, tone="good"), ""),
        (Span(start=0, end=0.001, tone="bad"), "█"),
        (Span(start=0.999, end=1, tone="bad"), "       █"),
    ],
)
def test_a_bar_begins_and_ends_where_it_should_and_a_small_step_is_seen(span: Span, drawn: str) -> None:
    assert span_text(span, 8) == drawn
