"""A replayed snapshot: which setting reserves least, how far that can be trusted, and the table of settings."""

from __future__ import annotations

from collections.abc import Iterator

from oomscope.report import parts
from oomscope.report.parts import columns, line
from oomscope.report.sentences import count, percent
from oomscope.report.verdict_text import failed_when
from oomscope.snapshot.replay.fidelity import Fidelity, Mismatch
from oomscope.snapshot.replay.fixes import AS_RECORDED
from oomscope.snapshot.replay.recording import STAND_FOR
from oomscope.snapshot.replay.replay_table import REPACKED, ReplayTable
from oomscope.units import format_size


def replay_report(replayed: ReplayTable, *, title: str = "") -> Iterator[parts.Part]:
    """Yield the whole report; its first line begins with ``title``."""
    device = f"device {replayed.device}"
    if len(replayed.devices) > 1:
        device += f" of {', '.join(map(str, replayed.devices))}"
    heading = (title, device, count(replayed.events, "event"), replayed.conf or "default settings")
    yield line(" · ".join(part for part in heading if part), "soft")
    yield parts.status(answer_text(replayed))
    yield parts.BLANK
    yield parts.Facts(rows=list(_facts(replayed)))
    yield setting_table(replayed)
    if replayed.fidelity.is_trusted and any(row.begun_afresh for row in replayed.rows):
        yield line("* older blocks repacked; compare with the row: repacked", "soft")
    yield mismatch_table(replayed.fidelity.mismatches)
    yield from (parts.note(caveat.text) for caveat in replayed.caveats)


def answer_text(replayed: ReplayTable) -> str:
    """Return the result of the table in one sentence."""
    if not replayed.fidelity.is_trusted:
        return "The replay does not repeat this recording, so no other settings are compared."
    recorded, *tried = replayed.rows
    passing = [row for row in tried if row.survives and row.name != REPACKED]
    if not recorded.survives:
        names = " or ".join(row.name for row in passing)  # a setting of several options has commas
        return (
            f"Under the recorded settings a request fails on this card; it passes under {names}."
            if names
            else "A request fails under each setting."
        )
    own = {row.begun_afresh: row.peak_reserved_bytes for row in replayed.rows if row.name in {AS_RECORDED, REPACKED}}
    best = max(passing, key=lambda row: own[row.begun_afresh] - row.peak_reserved_bytes, default=recorded)
    before, saved = own[best.begun_afresh], own[best.begun_afresh] - best.peak_reserved_bytes
    if saved <= 0:
        return f"{format_size(before)} are reserved at most; no setting tried reserves less."
    least = f"{best.name} reserves {format_size(saved)} less: {format_size(best.peak_reserved_bytes)} at most"
    begun = ", both repacked" if best.begun_afresh else ""
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


def _facts(replayed: ReplayTable) -> Iterator[tuple[str, str]]:
    yield "Fidelity", fidelity_text(replayed.fidelity)
    yield "Rules", _rules_text(replayed)
    if replayed.available_bytes is not None:
        up_to = "up to " if replayed.available_is_bound else ""
        yield "Available", f"{up_to}{format_size(replayed.available_bytes)} ({replayed.available_source})"
    at = replayed.peak_event
    when = f"at event {at:,}" if at >= 0 else "before the first event"
    yield "Requested peak", f"{format_size(replayed.peak_requested_bytes)} {when}"


def _rules_text(replayed: ReplayTable) -> str:
    if replayed.version_source == "found":
        rules = STAND_FOR[replayed.torch_version]
        return f"{rules}, which repeat the recording best" if replayed.fidelity.matched else f"{rules}; none repeat it"
    origin = "as given" if replayed.version_source == "given" else "as the file states"
    return f"torch {replayed.torch_version}, {origin}"


def setting_table(replayed: ReplayTable) -> parts.Table:
    """Return every setting with what came out, then what no setting can beat."""
    margin = [f"size:{_margin_title(replayed)}"] if replayed.available_bytes is not None else []
    rows: list[parts.Row] = []
    for row in replayed.rows if replayed.fidelity.is_trusted else replayed.rows[:1]:
        outcome = parts.Cell(
            text="passes" if row.survives else failed_when(row.failed_event), tone="good" if row.survives else "bad"
        )
        name = row.name.replace(",", ",\n") + (" *" if row.begun_afresh and row.name != REPACKED else "")
        sizes = (row.peak_reserved_bytes, "" if row.overhead_bytes is None else row.overhead_bytes)
        room = ["" if row.margin_bytes is None else row.margin_bytes] if margin else []
        rows.append((name, outcome, *sizes, *room, row.retries, row.segments))
    unset = ["" for _ in (*margin, "retries", "segments")]
    least = replayed.peak_requested_bytes
    return parts.Table(
        title="The same allocations under each setting",
        columns=columns(
            *("Setting", "Outcome", "size:Peak reserved", "size:Overhead"), *margin, "count:Retries", "count:Segments"
        ),
        rows=rows,
        total=("packing lower bound", "no setting", least, 0, *unset),
    )


def _margin_title(replayed: ReplayTable) -> str:
    """Return what margins are: exact, or those of the smallest or the largest card that it can have been."""
    if not replayed.available_is_bound:
        return "Margin"
    return "Margin at most" if replayed.replayed_bytes == replayed.available_bytes else "Margin at least"


def mismatch_table(mismatches: tuple[Mismatch, ...]) -> parts.Table:
    """Return what only one side did, events of one kind and reason as one row."""
    groups: dict[tuple[bool, str, str], list[Mismatch]] = {}
    for row in mismatches:
        groups.setdefault((row.recorded, row.action, row.reason), []).append(row)
    return parts.Table(
        title="Differences between replay and recording",
        columns=columns("Only", "What", "count:Events", "count:First", "size:Bytes", "Why"),
        rows=[
            (
                "recorded" if recorded else "replayed",
                action,
                len(group),
                group[0].event,
                sum(row.size for row in group),
                reason,
            )
            for (recorded, action, reason), group in groups.items()
        ],
    )
