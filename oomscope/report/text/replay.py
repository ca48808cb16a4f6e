"""A replayed snapshot for the terminal: which setting reserves least, how far that can be trusted, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.report.sentences import count, failed_when, percent
from oomscope.report.text.layout import facts, section, table
from oomscope.snapshot.replay.fidelity import Fidelity, Mismatch
from oomscope.snapshot.replay.fixes import AS_RECORDED
from oomscope.snapshot.replay.recording import STAND_FOR
from oomscope.snapshot.replay.replay_table import AFRESH, ReplayTable, SettingReplayed
from oomscope.units import format_size

FEW: Final = 20
"""Segment events of one side only that are listed one by one unless all are asked for."""


def replay_report(replayed: ReplayTable, *, title: str = "", all_mismatches: bool = False) -> RenderableType:
    """Return the whole report.

    Args:
        replayed: the replayed snapshot.
        title: what the first line begins with.
        all_mismatches: whether every segment event that only one side has is a row, however many there are.
    """
    return Group(*_parts(replayed, title, all_mismatches=all_mismatches))


def _parts(replayed: ReplayTable, title: str, *, all_mismatches: bool) -> Iterator[RenderableType]:
    device = f"device {replayed.device}"
    if len(replayed.devices) > 1:
        device += f" of {', '.join(map(str, replayed.devices))}"
    parts = (title, device, count(replayed.events, "event"), replayed.conf or "default settings")
    yield Text(" · ".join(part for part in parts if part), style="dim")
    yield Text(answer_text(replayed), style="bold")
    yield Text()
    yield facts(_facts(replayed))
    yield section("The same allocations under each setting", setting_table(replayed))
    if replayed.fidelity.is_trusted and any(row.begun_afresh for row in replayed.rows):
        yield Text("* begun afresh, to be compared with the row that is begun so", style="dim")
    if mismatches := replayed.fidelity.mismatches:
        one_by_one = all_mismatches or len(mismatches) <= FEW
        rows = mismatch_table(mismatches) if one_by_one else mismatch_groups(mismatches)
        yield section("Differences between replay and recording", rows)
        if not one_by_one:
            yield Text("each of these events: --all-mismatches", style="dim")
    for caveat in replayed.caveats:
        yield Text(f"note: {caveat.text}", style="dim")


def answer_text(replayed: ReplayTable) -> str:
    """Return in one sentence what the table says."""
    if not replayed.fidelity.is_trusted:
        return "The replay does not repeat this recording, so no other settings are compared."
    recorded, *tried = replayed.rows
    passing = [row for row in tried if row.survives and row.name != AFRESH]
    if not recorded.survives:
        names = " or ".join(row.name for row in passing)  # a setting of several options has commas
        return (
            f"As recorded a request fails; it passes under {names}." if names else "A request fails under each setting."
        )
    own = {row.begun_afresh: row.peak_reserved_bytes for row in replayed.rows if row.name in {AS_RECORDED, AFRESH}}
    best = max(passing, key=lambda row: own[row.begun_afresh] - row.peak_reserved_bytes, default=recorded)
    before, saved = own[best.begun_afresh], own[best.begun_afresh] - best.peak_reserved_bytes
    if saved <= 0:
        return f"{format_size(before)} are reserved at most; no setting tried reserves less."
    least = f"{best.name} reserves {format_size(saved)} less: {format_size(best.peak_reserved_bytes)} at most"
    begun = ", both begun afresh" if best.begun_afresh else ""
    return f"{least}, instead of {format_size(before)} as recorded{begun}."


def fidelity_text(fidelity: Fidelity) -> str:
    """Return how far the emulator repeats the recording."""
    larger = max(fidelity.recorded, fidelity.emulated)
    if larger:
        segments = f"{fidelity.share:.3f}: {fidelity.matched:,} of {count(larger, 'segment event')} repeated"
    else:
        segments = "1.000: neither the recording nor the replay takes or gives back a segment"
    if not fidelity.allocations:
        return f"{segments}; the recording allocates nothing"
    placed = f"{fidelity.placed:,} of {count(fidelity.allocations, 'allocation')}"
    return f"{segments}; {placed} at the recorded address ({percent(fidelity.placed, fidelity.allocations)})"


def _facts(replayed: ReplayTable) -> Iterator[tuple[str, RenderableType]]:
    yield "Fidelity", fidelity_text(replayed.fidelity)
    yield "Rules", _rules_text(replayed)
    if replayed.available_bytes is not None:
        yield "Available", f"{format_size(replayed.available_bytes)} ({replayed.available_source})"
    at = replayed.requested_peak_event
    when = f"at event {at:,}" if at >= 0 else "before the first event"
    yield "Requested peak", f"{format_size(replayed.requested_peak_bytes)} {when}"


def _rules_text(replayed: ReplayTable) -> str:
    if replayed.version_source == "found":
        rules = STAND_FOR[replayed.torch_version]
        return f"{rules}, which repeat the recording best" if replayed.fidelity.matched else f"{rules}; none repeat it"
    said = "as given" if replayed.version_source == "given" else "as the file says"
    return f"torch {replayed.torch_version}, {said}"


def setting_table(replayed: ReplayTable) -> Table:
    """Return every setting with what came out, then what no setting can beat."""
    has_card = replayed.available_bytes is not None
    rows = table(
        "Setting", "Outcome", ">Peak reserved", ">Overhead", *([">Margin"] if has_card else []), ">Retries", ">Segments"
    )
    for row in replayed.rows if replayed.fidelity.is_trusted else replayed.rows[:1]:
        outcome = Text(_outcome(row), style="green" if row.survives else "red")
        name = row.name.replace(",", ",\n") + (" *" if row.begun_afresh and row.name != AFRESH else "")
        margin = [_size(row.margin_bytes)] if has_card else []
        sizes = (format_size(row.peak_reserved_bytes), _size(row.overhead_bytes), *margin)
        rows.add_row(name, outcome, *sizes, f"{row.retries:,}", f"{row.segments:,}")
    rows.add_section()
    if replayed.planned_bytes is not None:
        plan = (format_size(replayed.planned_bytes), _size(replayed.planned_bytes - replayed.requested_peak_bytes))
        rows.add_row("first-fit plan", "no setting", *plan)
    rows.add_row("packing lower bound", "no setting", format_size(replayed.requested_peak_bytes), "0 B")
    return rows


def _outcome(row: SettingReplayed) -> str:
    if row.survives:
        return "passes"
    return failed_when(row.failed_event)


def _size(size: int | None) -> str:
    return "" if size is None else format_size(size)


def mismatch_table(mismatches: tuple[Mismatch, ...]) -> Table:
    """Return what only one side did, event by event; a reason stands where it first holds."""
    rows = table(">Event", "Only", "What", ">Size", "Why")
    reason = ""
    for row in mismatches:
        why = "" if row.reason == reason else row.reason
        rows.add_row(f"{row.event:,}", _side(row.recorded), row.action, format_size(row.size), why)
        reason = row.reason
    return rows


def _side(recorded: bool) -> str:
    return "recorded" if recorded else "replayed"


def mismatch_groups(mismatches: tuple[Mismatch, ...]) -> Table:
    """Return what only one side did, events of one kind and reason as one row."""
    groups: dict[tuple[bool, str, str], list[Mismatch]] = {}
    for row in mismatches:
        groups.setdefault((row.recorded, row.action, row.reason), []).append(row)
    rows = table("Only", "What", ">Events", ">First", "Why")
    for (recorded, action, reason), group in groups.items():
        rows.add_row(_side(recorded), action, f"{len(group):,}", f"{group[0].event:,}", reason)
    return rows
