"""Searches and their journals for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from oomscope.bisect.account import Account
from oomscope.bisect.journal import Answered
from oomscope.bisect.standing import Standing
from oomscope.report import words
from oomscope.report.bisect_text import probe_line
from oomscope.report.layout import facts, table

STATE_STYLES = {"running": "bold", "interrupted": "yellow", "ended": "green"}


def status_report(standings: Sequence[Standing], problems: Sequence[str]) -> RenderableType:
    """Return the searches as a table, and what could not be read."""
    places = ("In",) if len({each.place for each in standings}) > 1 else ()
    rows = table(">Search", "State", "Ends", *places, ">Probes", ">Suspects", "Answer")
    for each in standings:
        state = Text(each.state, style=STATE_STYLES[each.state])
        place = (each.place.removesuffix("/.git"),) if places else ()
        rows.add_row(str(each.search), state, each.title, *place, _probes(each), _suspects(each), each.message)
    notes = [Text(f"note: {problem}", style="yellow") for problem in problems]
    return Group(rows if standings else Text("No searches."), *notes)


def log_report(account: Account, standing: Standing, path: str) -> RenderableType:
    """Return every answer of a search, those taken back as well."""
    return Group(*_log_parts(account, standing, path))


def undone_report(number: int, gone: Sequence[Answered]) -> RenderableType:
    """Return what was taken back."""
    heading = Text(f"Search {number}: {words.count(len(gone), 'answer')} taken back; resume asks again", style="bold")
    return Group(heading, *(probe_line(answer.record) for answer in gone))


def _log_parts(account: Account, standing: Standing, path: str) -> Iterator[RenderableType]:
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
    if account.taken_back:
        yield Text()
        yield Text("Taken back", style="bold")
        for answer in account.taken_back:
            yield probe_line(answer.record)
    for problem in account.problems:
        yield Text(f"note: {problem}", style="yellow")
    if standing.message:
        yield Text()
        yield Text(standing.message)


def _probes(standing: Standing) -> str:
    announced = standing.probes_at_most
    # Steps, merges and untestable commits come on top of what was announced; then it bounds nothing any more.
    most = "" if announced is None or standing.probes > announced else f" of at most {announced}"
    return f"{standing.probes}{most}"


def _suspects(standing: Standing) -> str:
    return "" if standing.suspects is None else str(standing.suspects)
