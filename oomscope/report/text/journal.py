"""Searches and their journals for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from oomscope.bisect.journal.journal_state import JournalState, SearchStatus
from oomscope.report.text.bisect import probe_line
from oomscope.report.text.layout import facts


def log_report(account: JournalState, standing: SearchStatus, path: str) -> RenderableType:
    """Return where a search stands, and its answers."""
    return Group(*_log_parts(account, standing, path))


def _log_parts(account: JournalState, standing: SearchStatus, path: str) -> Iterator[RenderableType]:
    begun = account.begun
    rows = [
        ("Search", f"{begun.search}, {standing.state}"),
        ("Ends", f"{begun.title}, bad is {begun.bad}"),
        ("In", begun.place),
        ("Begun", account.began_at),
        ("Command", shlex.join(("oomscope", "bisect", *begun.words)) if begun.words else "a program's"),
        ("Probes", _probes(standing)),
        ("Journal", path),
    ]
    yield facts([(name, Text(value)) for name, value in rows])
    yield Text()
    for answer in account.answers:
        yield probe_line(answer.record)
    for problem in account.problems:
        yield Text(f"note: {problem}", style="yellow")
    if standing.message:
        yield Text()
        yield Text(standing.message)


def _probes(standing: SearchStatus) -> str:
    announced = standing.probes_at_most
    # Steps, merges and untestable commits come on top of what was announced; then it bounds nothing any more.
    most = "" if announced is None or standing.probes > announced else f" of at most {announced}"
    return f"{standing.probes}{most}"
