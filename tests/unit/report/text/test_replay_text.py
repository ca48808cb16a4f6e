"""What a replay does otherwise is told event by event, or in groups where that is much."""

from __future__ import annotations

import io
from dataclasses import replace

from oomscope.report.text.console import result_console, show
from oomscope.report.text.replay import FEW, replay_report
from oomscope.snapshot.replay.fidelity import Fidelity, Mismatch
from oomscope.snapshot.replay.replay_table import ReplayTable, SettingReplayed
from oomscope.units import MiB


def mismatch(event: int, *, recorded: bool = True, reason: str = "unexplained") -> Mismatch:
    return Mismatch(recorded=recorded, event=event, action="segment_map", size=event * MiB, stream=0, reason=reason)


def replayed(*mismatches: Mismatch) -> ReplayTable:
    row = SettingReplayed(
        name="as recorded",
        conf="",
        survives=True,
        failed_event=None,
        peak_reserved_bytes=20 * MiB,
        overhead_bytes=0,
        largest_overhead_bytes=0,
        margin_bytes=None,
        retries=0,
        segments=1,
        begun_afresh=False,
    )
    return ReplayTable(
        device=0,
        events=100,
        conf="",
        torch_version="2.11",
        version_source="given",
        available_bytes=None,
        available_source="",
        fidelity=Fidelity(recorded=200, emulated=200, matched=199, allocations=1, placed=1, mismatches=mismatches),
        rows=(row,),
        requested_peak_bytes=20 * MiB,
        requested_peak_event=3,
        devices=(0,),
        planned_bytes=None,
        caveats=(),
    )


def lines(table: ReplayTable, *, all_mismatches: bool = False) -> list[str]:
    """Return the report from the section on what is done otherwise, blanks folded."""
    file = io.StringIO()
    show(result_console(file), replay_report(table, all_mismatches=all_mismatches))
    told = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    title = "Differences between replay and recording"
    return told[told.index(title) + 1 :] if title in told else []


def test_a_replay_that_does_nothing_otherwise_has_no_such_section() -> None:
    assert lines(replayed()) == []


def test_a_peak_before_the_first_event_is_of_no_event() -> None:
    file = io.StringIO()
    show(result_console(file), replay_report(replace(replayed(), requested_peak_event=-1)))
    assert "20.00 MiB before the first event" in file.getvalue()


def test_few_are_told_one_by_one_and_a_reason_where_it_begins() -> None:
    told = lines(replayed(mismatch(3), mismatch(5, recorded=False), mismatch(7, reason="Ascend")))
    assert told[0] == "Event Only What Size Why"
    assert told[2:] == [
        "3 recorded segment_map 3.00 MiB unexplained",
        "5 replayed segment_map 5.00 MiB",
        "7 recorded segment_map 7.00 MiB Ascend",
    ]


def test_many_are_told_in_groups_unless_each_is_asked_for() -> None:
    many = replayed(*(mismatch(event) for event in range(FEW + 1)))
    assert lines(many)[2:] == [
        f"recorded segment_map {FEW + 1} 0 unexplained",
        "each of these events: --all-mismatches",
    ]
    assert len(lines(many, all_mismatches=True)) == FEW + 3
    assert len(lines(replayed(*(mismatch(event) for event in range(FEW))))) == FEW + 2
