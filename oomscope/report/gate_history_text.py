"""The trends of the gate for the terminal: a line of bars for each case, and a row a night."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.gate.history import Entry, Trend
from oomscope.gate.status import ruling
from oomscope.report import gate_words
from oomscope.report.bisect_words import short_hash
from oomscope.report.layout import section, table
from oomscope.report.sparkline import Sparkline
from oomscope.report.words import count


def history_report(trends: Sequence[Trend]) -> RenderableType:
    """Return the whole report."""
    return Group(*(section(title(trend), Group(Sparkline(trend.values), nights(trend))) for trend in trends))


def title(trend: Trend) -> str:
    """Return what a trend shows: ``llama3-8b: peak_live over 30 nights``."""
    return f"{trend.name}: {trend.metric} over {count(len(trend.entries), 'night')}"


def nights(trend: Trend) -> Table:
    """Return a row a night, oldest first."""
    rows = table(">Night (UTC)", "Verdict", f">{trend.metric}", ">Change", "Commit", "?Remark")
    for entry in trend.entries:
        rows.add_row(
            night_text(entry),
            Text(str(entry.status), style=gate_words.STYLES[ruling([entry.status]).tone]),
            gate_words.value_text(trend.metric, entry.value),
            gate_words.change_text(trend.metric, entry.change) if entry.change is not None else "",
            commit_text(entry),
            remark_text(entry),
        )
    return rows


def night_text(entry: Entry) -> str:
    """Return when a night began, in UTC as it is kept, to the minute."""
    return entry.started[:16].replace("T", " ")


def commit_text(entry: Entry) -> str:
    """Return the commit of a night, with a star where files differed from it."""
    standing = entry.standing
    if standing is None:
        return ""
    return f"{short_hash(standing.commit)}{'*' if standing.dirty else ''} {standing.subject}"


def remark_text(entry: Entry) -> str:
    """Return what else is to be said of a night."""
    return entry.reason if entry.is_comparable else "other conditions: the trend begins afresh"
