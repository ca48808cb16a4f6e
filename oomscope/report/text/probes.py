"""The probes of a search on a terminal: one line each as they come, and the log of a search."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from oomscope.bisect.journal.journal_state import JournalState, SearchStatus
from oomscope.bisect.results.predicate import bad_text
from oomscope.bisect.results.result import ProbeRecord
from oomscope.report import parts
from oomscope.report.commands import bisect_sentences
from oomscope.report.commands.bisect import ANSWER_TONES
from oomscope.report.sentences import known_size, shortened
from oomscope.report.text.layout import STYLES, drawn
from oomscope.units import format_size

NAME_WIDTH: Final = 52


@dataclass(frozen=True)
class ProbeLine:
    """One probe's answer as a line; on a terminal that is too narrow, as lines that hang below the name."""

    record: ProbeRecord

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        number, answer, *texts = self._texts()
        line = Text("  ").join((number, answer, *texts))
        if options.no_wrap or line.cell_len <= options.max_width:
            yield line
            return
        for text in texts:
            text.rstrip()
        grid = Table.grid(padding=(0, 2))
        for _ in range(2):
            grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(number, answer, Text("\n").join(texts))
        yield grid

    def _texts(self) -> Iterator[Text]:
        record = self.record
        yield Text(f"{record.number:>3}")
        yield Text(f"{record.answer.value:<10}", style=STYLES[ANSWER_TONES[record.answer]])
        yield Text(f"{shortened(bisect_sentences.probe_name(record), NAME_WIDTH):<{NAME_WIDTH}}")
        if record.peak:
            bound = "≥" if record.is_lower_bound else " "
            live, reserved = format_size(record.peak.requested_bytes), known_size(record.peak.reserved_bytes)
            yield Text(f"requested {bound}{live:>10}  reserved {reserved:>10}")
        yield Text(record.reason)
        if record.repeat:
            yield Text(f"(measurement {record.repeat + 1})", style="dim")
        yield Text(f"({bisect_sentences.took_text(record)})", style="dim")


def log_report(account: JournalState, standing: SearchStatus, path: str) -> RenderableType:
    """Return the state of a search, and its answers."""
    return Group(*_log_parts(account, standing, path))


def _log_parts(account: JournalState, standing: SearchStatus, path: str) -> Iterator[RenderableType]:
    begun = account.begun
    rows = [
        ("Search", f"{begun.search}, {standing.state}"),
        ("Ends", f"{begun.title}, bad = {bad_text(begun.bad)}"),
        ("In", begun.place),
        ("Begun", account.began_at),
        ("Command", shlex.join(("oomscope", "bisect", *begun.words)) if begun.words else "a program's"),
        ("Probes", str(standing.probes)),
        ("Journal", path),
    ]
    yield drawn([parts.Facts(rows=rows)])
    yield Text()
    for answer in account.answers:
        yield ProbeLine(answer)
    for problem in account.problems:
        yield Text(f"note: {problem}", style="yellow")
    if standing.message:
        yield Text()
        yield Text(standing.message)
