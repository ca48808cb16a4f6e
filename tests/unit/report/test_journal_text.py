from __future__ import annotations

import io

from rich.console import Console, RenderableType

from oomscope.bisect.journal.journal_state import Closing, JournalState, SearchStatus
from oomscope.report.text.bisect import log_report
from tests.unit.bisect.journal.test_journal_state import answered, begun


def shown(report: RenderableType, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(report)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


ACCOUNT = JournalState(
    begun=begun(words=("v1..main", "--bad", "requested>1GiB")),
    began_at="2026-01-01T00:00:00+00:00",
    probes_at_most=9,
    answers=(answered(1), answered(2)),
    problems=("7.jsonl:3: the line cannot be read",),
)
ENDED = Closing(outcome="culprit", message="abc is the first bad commit")


def test_where_a_search_stands() -> None:
    interrupted = SearchStatus.of(ACCOUNT, is_running=False)
    assert (interrupted.state, interrupted.outcome, interrupted.probes) == ("interrupted", None, 2)
    assert SearchStatus.of(ACCOUNT, is_running=True).state == "running"
    ended = SearchStatus.of(JournalState(begun=begun(), closing=ENDED), is_running=False)
    assert (ended.state, ended.outcome, ended.message) == ("ended", "culprit", ENDED.message)
    stopped = JournalState(begun=begun(), closing=Closing(outcome="stopped", message="interrupted"))
    assert SearchStatus.of(stopped, is_running=False).state == "interrupted"
    going_on = JournalState(begun=begun(), closing=ENDED)
    assert SearchStatus.of(going_on, is_running=True).state == "running"


def test_the_log_shows_where_a_search_stands() -> None:
    text = shown(log_report(ACCOUNT, SearchStatus.of(ACCOUNT, is_running=False), "/state/7.jsonl"))
    assert "oomscope bisect v1..main --bad 'requested>1GiB'" in text
    assert "2 of at most 9" in text
    assert "note: 7.jsonl:3" in text
    assert "/state/7.jsonl" in text
    program = JournalState(begun=begun(words=()), closing=ENDED)
    text = shown(log_report(program, SearchStatus.of(program, is_running=False), "x"))
    assert "a program's" in text
    assert ENDED.message in text
