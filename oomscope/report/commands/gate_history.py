"""The trends of the gate: what changed at a glance, then each case with a row a night."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from oomscope.gate.ledger.history import Entry, Step, Trend, gravest_first
from oomscope.gate.night.status import ruling
from oomscope.report import parts
from oomscope.report.commands import gate_sentences
from oomscope.report.commands.gate_sentences import commit_text
from oomscope.report.parts import Cell, columns
from oomscope.report.sentences import count, short_hash

TREND_RESTARTS: Final = "other conditions: the trend starts again"

Figures = Callable[[Trend], Iterable[parts.Figure]]


def history_report(trends: Sequence[Trend]) -> Iterator[parts.Part]:
    """Yield the whole report for a terminal."""
    yield parts.status(heading(trends))
    yield from trend_parts(gravest_first(trends), lambda _: (), None)


def trend_parts(trends: Sequence[Trend], figures: Figures, nights: int | None) -> Iterator[parts.Part]:
    """Yield the state of each trend, what is worse first, then each with its last ``nights`` (None: all).

    ``figures`` gives the chart of a trend; a terminal shows a curve instead.
    """
    yield _overview(trends)
    for trend in trends:
        yield parts.Heading(text=title(trend))
        yield from figures(trend)
        yield parts.Facts(rows=[("Trend", parts.Curve(values=[entry.value for entry in trend.entries]))])
        shown = trend.entries if nights is None else trend.entries[-nights:]
        yield _nights(trend, shown)
        if found := remarks(shown):
            yield parts.BLANK
        yield from (parts.line(f"{when}  {text}", "soft") for when, text in found)


def _overview(trends: Sequence[Trend]) -> parts.Table:
    """Return a row a case: its state, by how much it changed, when, and at which commit."""
    return parts.Table(
        name="overview",
        columns=columns("Case", "Verdict", "number:Last night", "number:Since first", "Largest step"),
        rows=[
            (
                trend.label,
                _verdict(trend.entries[-1]),
                _value(trend, trend.entries[-1].value),
                "" if trend.change is None else _change(trend, trend.change),
                step_text(trend),
            )
            for trend in trends
        ],
    )


def _nights(trend: Trend, entries: Sequence[Entry]) -> parts.Table:
    return parts.Table(
        columns=columns("number:Night (UTC)", "Verdict", f"number:{trend.metric}", "number:Change", "Commit"),
        rows=[
            (
                night_text(entry),
                _verdict(entry),
                _value(trend, entry.value),
                "" if entry.change is None else _change(trend, entry.change),
                commit_text(entry.standing),
            )
            for entry in entries
        ],
    )


def _verdict(entry: Entry) -> Cell:
    return Cell(text=str(entry.status), tone=ruling([entry.status]).tone.value)


def _value(trend: Trend, value: int | None) -> Cell:
    return Cell(text=gate_sentences.value_text(trend.metric, value), number=value)


def _change(trend: Trend, value: int) -> Cell:
    return Cell(text=gate_sentences.change_text(trend.metric, value), number=value)


def heading(trends: Sequence[Trend]) -> str:
    """Return ``peak_requested of 3 cases over 30 nights, the last of 2026-01-05 02:00 UTC``."""
    nights = {entry.night: entry for trend in trends for entry in trend.entries}
    last = night_text(max(nights.values(), key=lambda entry: entry.started))
    return (
        f"{trends[0].metric} of {count(len(trends), 'case')} over {count(len(nights), 'night')}, the last of {last} UTC"
    )


def step_text(trend: Trend) -> str:
    """Return the largest step of a trend: how large, when, and at which commit; empty where nothing changed."""
    step = trend.step
    if step is None:
        return "none beyond the band that warns" if any(entry.change for entry in trend.stretch) else ""
    size = gate_sentences.change_text(trend.metric, step.change)
    gone = "" if trend.change else ", gone since"
    return f"{size} on {night_text(step.after)}{gone}: {whose_text(step)}"


def whose_text(step: Step) -> str:
    """Return whose commit a step was: the one that was searched and found, else between which two it lies."""
    before, after, culprit = step.before.standing, step.after.standing, step.after.culprit
    if culprit is not None and culprit.commit:
        author = f", by {culprit.author}" if culprit.author else ""
        return f"{short_hash(culprit.commit)} {culprit.subject}{author}"
    if after is None:
        return "the commit is unknown"
    if before is None:
        return commit_text(step.after.standing)
    if before.commit == after.commit:
        return f"{commit_text(step.after.standing)}, the commit of the night before"
    return f"after {short_hash(before.commit)}, up to {commit_text(step.after.standing)}"


def title(trend: Trend) -> str:
    """Return what a trend shows: ``llama3-8b (ci/memory.yaml): peak_requested over 30 nights``."""
    return f"{trend.label}: {trend.metric} over {count(len(trend.entries), 'night')}"


def entry_text(trend: Trend, entry: Entry) -> str:
    """Return all of a night but its remarks: when, verdict, number, change and commit."""
    change = gate_sentences.change_text(trend.metric, entry.change) if entry.change else ""
    number = "" if entry.value is None else gate_sentences.value_text(trend.metric, entry.value)
    return ", ".join(
        filter(None, (f"{night_text(entry)}: {entry.status}", number, change, commit_text(entry.standing)))
    )


def remarks(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Return remarks with their nights; equal remarks of consecutive nights are merged."""
    found = []
    for text, run in groupby(entries, key=remark_text):
        alike = list(run)
        when = night_text(alike[0]) + (f" to {night_text(alike[-1])}" if len(alike) > 1 else "")
        found += [(when, text)] if text else []
    return found


def night_text(entry: Entry) -> str:
    """Return when a night began, to the minute and without its zone."""
    return entry.started[:16].replace("T", " ")


def remark_text(entry: Entry) -> str:
    """Return the remarks on a night, joined."""
    whose = f"whose commit: {gate_sentences.culprit_text(entry.culprit)}" if entry.culprit is not None else ""
    return "; ".join(filter(None, ("" if entry.is_comparable else TREND_RESTARTS, entry.reason, whose)))
