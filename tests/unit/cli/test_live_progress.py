from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from oomscope.bisect.results.reporter import SearchPlan, Work
from oomscope.cli.terminal.progress import LiveProgress, shown_progress
from oomscope.probe.job import Progress
from tests.unit.report import searches

WORK = Work(slot=0, label="aaaaaaaaaa start", is_asked=True)
PLAN = SearchPlan(title="t", good="a", bad="b", candidates=9, considered=9, probes_at_most=6)


def consoles(**options) -> tuple[Console, Console]:
    options = {"width": 200, "force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}, **options}
    return tuple(Console(file=io.StringIO(), **options) for _ in range(2))


def test_the_running_probe_is_shown_and_gone_before_its_answer() -> None:
    answers, progress = consoles()
    live = LiveProgress(answers, progress)
    live.planned(PLAN)
    live.probing("aaaaaaaaaa start", 1)
    live.at_work((WORK,))
    live.at_work((replace(WORK, progress=Progress(stage="step", done=1, total=2)),))
    live.probed(searches.PROBES[0])
    shown = progress.file.getvalue()
    assert "0 probes done, at most 6 more" in shown
    assert "1  probe 1, step 1 of 2, 0 s: aaaaaaaaaa start" in shown
    assert "  1  good" in answers.file.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is back"
    assert progress._live_stack == []


def test_what_runs_ahead_is_shown_beside_what_is_asked_for() -> None:
    _, progress = consoles()
    live = LiveProgress(None, progress, clock=iter(range(100)).__next__)
    live.probing("aaaaaaaaaa start", 1)
    live.at_work((WORK, Work(slot=1, label="cccccccccc middle", is_asked=False)))
    live.close()
    assert re.search(r"2  ahead, \d+ s: cccccccccc middle", progress.file.getvalue())


def test_an_answer_known_from_before_shows_nothing_between() -> None:
    answers, progress = consoles()
    live = LiveProgress(answers, progress)
    live.probing("name", 1)
    live.probed(searches.PROBES[1])
    assert progress.file.getvalue() == ""


@pytest.mark.parametrize("options", [{"force_terminal": False}, {"_environ": {"TERM": "dumb"}}])
def test_without_a_terminal_only_answers_are_printed(options) -> None:
    answers, progress = consoles(**options)
    live = LiveProgress(answers, progress)
    live.planned(PLAN)
    live.probing("name", 1)
    live.at_work((WORK,))
    live.probed(searches.PROBES[0])
    assert progress.file.getvalue() == ""
    lines = answers.file.getvalue()
    assert "\x1b" not in lines
    assert lines.endswith("\n")


def test_closing_twice_is_fine() -> None:
    live = LiveProgress(*consoles())
    live.probing("name", 1)
    live.at_work((WORK,))
    live.close()
    live.close()


def test_a_log_gets_one_line_a_stage_where_it_is_asked_for(capsys) -> None:
    for telling in ("quiet", "terminal"):
        with shown_progress("x", telling) as ticker:
            ticker(Progress(stage="step"))
            ticker.line("a row")
        assert capsys.readouterr().err == ""
    with shown_progress("x", "verbose") as announce:
        for done in range(3):
            announce(Progress(stage="step", done=done, total=3))
    assert capsys.readouterr().err == "x: step\n"


def test_control_sequences_in_names_are_shown_and_not_obeyed(capsys) -> None:
    _, progress = consoles()
    live = LiveProgress(progress, progress)
    live.probing("aaaaaaaaaa \x1b]0;title\x07", 1)
    live.at_work((replace(WORK, label="aaaaaaaaaa \x1b]0;title\x07"),))
    live.close()
    assert r"aaaaaaaaaa \x1b]0;title\x07" in progress.file.getvalue()
    with shown_progress("\x1b[31m.yaml", "verbose") as announce:
        announce(Progress(stage="step"))
    assert capsys.readouterr().err == "\\x1b[31m.yaml: step\n"


SEARCH = """
import sys, time
from oomscope.bisect import commit_bisect
from oomscope.bisect.results.reporter import SearchPlan, Work
from oomscope.cli.main import run
from tests.unit.report import long_searches, searches

def bisect(request, *, reporter):
    line = long_searches.THOUSAND.lines[0]
    plan = SearchPlan(title="t", good="a", bad="b", candidates=1000, considered=1000, probes_at_most=12, line=line)
    reporter.planned(plan)
    for record in long_searches.THOUSAND.probes[:6]:
        reporter.probing(f"{record.commit[:10]} {record.subject}", record.number)
        reporter.at_work((Work(slot=0, label=f"{record.commit[:10]} {record.subject}", is_asked=True),))
        time.sleep(0.1)
        reporter.at_work(())
        reporter.probed(record)
    return long_searches.THOUSAND

commit_bisect.bisect_commits = bisect
sys.exit(run(["bisect", "v1..v2", "--harness", sys.argv[1]]))
"""


def in_a_terminal(harness: Path, *, width: int, **variables: str) -> str:
    """What a terminal of ``width`` columns is sent by a search."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, "-c", SEARCH, str(harness)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env={**environment, **variables})
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 65536):
            said += data
    except OSError:  # Linux: nobody writes to it any more
        pass
    os.close(ours)
    assert process.wait(60) == 0, said.decode()
    return said.decode()


@pytest.fixture
def harness(tmp_path: Path) -> Path:
    file = tmp_path / "harness.py"
    file.touch()
    return file


@pytest.mark.parametrize(("width", "variables"), [(100, {}), (40, {"NO_COLOR": "1"})], ids=["wide", "narrow"])
def test_a_terminal_shows_the_range_and_keeps_the_answers(harness: Path, width: int, variables) -> None:
    said = in_a_terminal(harness, width=width, **variables)
    assert "✗" in said
    assert "━" in said
    assert "at fault is one of" in said
    assert ("\x1b[32m" in said) == (not variables), "colour, unless it is not wanted"
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h")
    shown = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in said.replace("\r", "\n").split("\n")]
    assert max(len(line) for line in shown if "✗" in line and "━" in line) <= width
    answers = [line for line in shown if re.match(r"  [1-6]  (good|bad)", line)]
    assert len(answers) == 6
