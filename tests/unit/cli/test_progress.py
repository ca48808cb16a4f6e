"""What a terminal and a log are shown while a command works."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.cli.terminal.progress import shown_progress
from oomscope.probe.job import Progress

RECORDED = Path("fixtures/snapshots")
SEARCH = """
import sys, time
from oomscope.bisect import commit_bisect
from oomscope.bisect.results.reporter import SearchPlan, RunningProbe
from oomscope.cli.main import run
from tests.unit.report import long_searches

def bisect(request, *, reporter):
    line = long_searches.THOUSAND.lines[0]
    plan = SearchPlan(title="t", good="a", bad="b", candidates=1000, considered=1000, probes_at_most=12, line=line)
    reporter.planned(plan)
    for record in long_searches.THOUSAND.probes[:6]:
        name = f"{record.commit[:10]} \\x1b]0;title\\x07{record.subject}"
        reporter.probing(name, record.number)
        ahead = RunningProbe(slot=1, label="ahead", is_asked=False)
        reporter.at_work((RunningProbe(slot=0, label=name, is_asked=True), ahead))
        time.sleep(0.1)
        reporter.at_work(())
        reporter.probed(record)
    return long_searches.THOUSAND

commit_bisect.bisect_commits = bisect
sys.exit(run(["bisect", "v1..v2", "--harness", "harness.py"]))
"""


def on_a_terminal(*words: str, width: int = 80, cwd: Path | None = None, **variables: str) -> str:
    """Return what a terminal is sent by Python under ``words``."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    path = os.pathsep.join([str(Path.cwd()), kept.get("PYTHONPATH", "")])
    environment = {**kept, "TERM": "xterm-256color", "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8"}
    environment |= {"PYTHONPATH": path, **variables}
    sent = b""
    with subprocess.Popen(
        [sys.executable, *words], stdout=theirs, stderr=theirs, stdin=theirs, env=environment, cwd=cwd
    ):
        os.close(theirs)
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # Linux: nobody writes to it any more
                break
            if not more:
                break
            sent += more
    os.close(ours)
    return sent.decode()


def plain(sent: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in sent.replace("\r", "\n").split("\n")]


def test_a_search_shows_the_range_and_keeps_the_answers(tmp_path: Path) -> None:
    (tmp_path / "harness.py").touch()
    sent = on_a_terminal("-c", SEARCH, width=40, cwd=tmp_path)
    assert "at fault is one of" in sent
    assert "\x1b[32m" in sent, "colour"
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h"), "the cursor is back"
    assert "\x1b]0;" not in sent, "names are shown, and not obeyed"
    shown = plain(sent)
    assert max(len(line) for line in shown if "✗" in line and "━" in line) <= 40
    assert len([line for line in shown if re.match(r"  [1-6]  (good|bad)", line)]) == 6
    assert any(re.search(r"2  ahead", line) for line in shown)


def test_explaining_shows_what_goes_on_and_takes_it_away() -> None:
    snapshot = min(RECORDED.glob("*.pickle*"))
    sent = on_a_terminal("-m", "oomscope", "explain", str(snapshot))
    assert re.search(r"analyse [\d,]+ events, \d+ s", sent)
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h")
    quiet = on_a_terminal("-m", "oomscope", "explain", str(snapshot), "--quiet", NO_COLOR="1")
    assert "analyse" not in quiet
    assert not re.search(r"\x1b\[[\d;]*3\dm", quiet), "no colour"


def test_a_log_gets_one_line_a_stage_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for verbosity in ("quiet", None):
        with shown_progress("x", verbosity) as ticker:
            ticker(Progress(stage="step"))
            ticker.line("a row")
        assert capsys.readouterr().err == ""
    with shown_progress("\x1b[31m.yaml", "verbose") as ticker:
        for done in range(3):
            ticker(Progress(stage="step", done=done, total=3))
        ticker.line("a row")
    assert capsys.readouterr().err == "\\x1b[31m.yaml: step\na row\n"
