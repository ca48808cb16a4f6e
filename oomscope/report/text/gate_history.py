"""The trends of the gate for the terminal: what changed at a glance, then each case with a row a night."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.gate.ledger.history import Entry, Step, Trend, gravest_first
from oomscope.gate.night.status import ruling
from oomscope.report import gate_sentences
from oomscope.report.bisect_sentences import short_hash
from oomscope.report.sentences import count
from oomscope.report.text.layout import Sparkline, section, table

BEGINS_AFRESH = "other conditions: the trend begins afresh"


def history_report(trends: Sequence[Trend]) -> RenderableType:
    """Return the whole report."""
    return Group(
        Text(heading(trends), style="bold"),
        overview(trends),
        *(section(title(trend), _body(trend)) for trend in gravest_first(trends)),
    )


def heading(trends: Sequence[Trend]) -> str:
    """Return ``peak_requested of 3 cases over 30 nights, the last of 2026-01-05 02:00 UTC``."""
    nights = {entry.night: entry.started for trend in trends for entry in trend.entries}
    last = moment_text(max(nights.values()))
    return (
        f"{trends[0].metric} of {count(len(trends), 'case')} over {count(len(nights), 'night')}, the last of {last} UTC"
    )


def overview(trends: Sequence[Trend]) -> Table:
    """Return a row a case, what is worse first: how it stands, by how much it changed, when, and at which commit."""
    rows = table("Case", "Verdict", ">Last night", ">Since first", "Largest step")
    for trend in gravest_first(trends):
        rows.add_row(
            trend.label, _status_text(trend.entries[-1]), now_text(trend), change_text(trend), step_text(trend)
        )
    return rows


def now_text(trend: Trend) -> str:
    """Return the number of the last night."""
    return gate_sentences.value_text(trend.metric, trend.entries[-1].value)


def change_text(trend: Trend) -> str:
    """Return by how much the trend changed over the nights that can be compared; empty where these are not two."""
    return "" if trend.change is None else gate_sentences.change_text(trend.metric, trend.change)


def step_text(trend: Trend) -> str:
    """Return the largest step of a trend: how large, when, and at which commit; empty where nothing changed."""
    step = trend.step
    if step is None:
        return "none beyond the band that warns" if any(entry.change for entry in trend.stretch) else ""
    size = gate_sentences.change_text(trend.metric, step.change)
    gone = "" if trend.change else ", gone by now"
    return f"{size} on {night_text(step.after)}{gone}: {whose_text(step)}"


def whose_text(step: Step) -> str:
    """Return whose commit a step was: the one that was searched and found, else between which two it lies."""
    before, after, culprit = step.before.standing, step.after.standing, step.after.culprit
    if culprit is not None and culprit.commit:
        author = f", by {culprit.author}" if culprit.author else ""
        return f"{short_hash(culprit.commit)} {culprit.subject}{author}"
    if after is None:
        return "no commit is known"
    if before is None:
        return commit_text(step.after)
    if before.commit == after.commit:
        return f"{commit_text(step.after)}, the commit of the night before"
    return f"after {short_hash(before.commit)}, up to {commit_text(step.after)}"


def title(trend: Trend) -> str:
    """Return what a trend shows: ``llama3-8b (ci/memory.yaml): peak_requested over 30 nights``."""
    return f"{trend.label}: {trend.metric} over {count(len(trend.entries), 'night')}"


def _body(trend: Trend) -> RenderableType:
    said = [Text.assemble((when, "dim"), f"  {text}") for when, text in remarks(trend.entries)]
    bars = Sparkline([entry.value for entry in trend.entries])
    return Group(bars, nights(trend), *([Text(), *said] if said else []))


def nights(trend: Trend) -> Table:
    """Return a row a night, oldest first."""
    rows = table(">Night (UTC)", "Verdict", f">{trend.metric}", ">Change", "Commit")
    for entry in trend.entries:
        rows.add_row(
            night_text(entry),
            _status_text(entry),
            gate_sentences.value_text(trend.metric, entry.value),
            gate_sentences.change_text(trend.metric, entry.change) if entry.change is not None else "",
            commit_text(entry),
        )
    return rows


def entry_text(trend: Trend, entry: Entry) -> str:
    """Return all of a night but its remarks: when, verdict, number, change and commit."""
    change = gate_sentences.change_text(trend.metric, entry.change) if entry.change else ""
    number = "" if entry.value is None else gate_sentences.value_text(trend.metric, entry.value)
    return ", ".join(filter(None, (f"{night_text(entry)}: {entry.status}", number, change, commit_text(entry))))


def remarks(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Return what else is to be said of nights, and of which; what is said of several in a row is said once."""
    said = []
    for text, run in groupby(entries, key=remark_text):
        alike = list(run)
        when = night_text(alike[0]) + (f" to {night_text(alike[-1])}" if len(alike) > 1 else "")
        said += [(when, text)] if text else []
    return said


def night_text(entry: Entry) -> str:
    """Return when a night began, in UTC as it is kept, to the minute."""
    return moment_text(entry.started)


def day_texts(entries: Sequence[Entry]) -> list[str]:
    """Return the day of each of ``entries``; with the time where two of them are of one day."""
    days = [entry.started[:10] for entry in entries]
    return days if len(set(days)) == len(days) else [moment_text(entry.started) for entry in entries]


def moment_text(started: str) -> str:
    """Return a time to the minute, without its zone."""
    return started[:16].replace("T", " ")


def commit_text(entry: Entry) -> str:
    """Return the commit of a night, with a star where files differed from it."""
    standing = entry.standing
    if standing is None:
        return ""
    return f"{short_hash(standing.commit)}{'*' if standing.dirty else ''} {standing.subject}"


def remark_text(entry: Entry) -> str:
    """Return what else is to be said of a night."""
    whose = f"whose commit: {gate_sentences.culprit_text(entry.culprit)}" if entry.culprit is not None else ""
    return "; ".join(filter(None, ("" if entry.is_comparable else BEGINS_AFRESH, entry.reason, whose)))


def _status_text(entry: Entry) -> Text:
    return Text(str(entry.status), style=gate_sentences.STYLES[ruling([entry.status]).tone])
