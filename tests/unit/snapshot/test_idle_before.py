"""A recording that lost a peak before its beginning says so, and claims no room that the peak may have taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.report.commands.diff import headline, remarks
from oomscope.report.commands.explain import explain_report
from oomscope.report.commands.explain_sentences import status_text
from oomscope.report.exports.summary import summary_of
from oomscope.snapshot.accounting.idle_before import idle_before
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.trace import Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cuts import tail
from tests.unit.snapshot.explain.test_explain import snapshot_of
from tests.unit.snapshot.explained import explain
from tests.unit.snapshot.machine import Machine


def recorded(
    conf: str = "", *, before: int = 3000 * MiB, kept: int = 100 * MiB, pool: int = 0, keep_start: bool = False
) -> Snapshot:
    """Return the file of a job that had a block of ``before`` bytes before its recording began."""
    machine = Machine(80 * GiB, conf)
    held = machine.alloc(kept)
    machine.free(machine.alloc(before, pool=pool))
    start = 0 if keep_start else len(machine.builder)
    for _ in range(3):
        machine.free(machine.alloc(200 * MiB))
    machine.free(held)
    return replace(snapshot_of(machine), traces=(tail(machine.trace(), start),))


def idle_of(snapshot: Snapshot) -> int:
    return idle_before(Timeline.of(snapshot.traces[0], snapshot.segments))


@pytest.mark.parametrize(
    ("snapshot", "idle"),
    [
        (recorded(), 2800 * MiB),
        (recorded("expandable_segments:True"), 2800 * MiB),
        (recorded(before=190 * MiB), 190 * MiB),
        (recorded(before=200 * MiB), 0),
        (recorded(before=8 * MiB), 0),
        (recorded(before=4096 * MiB, kept=60 * GiB), 3896 * MiB),
        (recorded(before=3000 * MiB, kept=60 * GiB), 0),
        (recorded(pool=1), 0),
        (recorded(keep_start=True), 0),
    ],
)
def test_idle_is_what_was_reserved_before_and_is_never_used(snapshot, idle):
    assert idle_of(snapshot) == idle


def test_what_the_recording_gives_back_unused_was_reserved_before():
    machine = Machine(8 * GiB)
    machine.free(machine.alloc(3000 * MiB))
    start = len(machine.builder)
    machine.empty_cache()
    machine.alloc(100 * MiB)
    snapshot = replace(snapshot_of(machine), traces=(tail(machine.trace(), start),))
    assert idle_of(snapshot) == 3000 * MiB


def test_nothing_is_to_spare_of_a_card_smaller_than_what_was_reserved_before():
    snapshot = recorded()
    [device] = explain(snapshot, file="snap.pickle").devices
    assert status_text(device) == "NO FAILED ALLOCATION, 300.00 MiB requested at most since the recording began"
    note = "before the recording began the job had reserved 3.03 GiB, and the recording never uses 2.73 GiB of it"
    assert f"{note}: an earlier peak is not in this file" in device.caveats
    document = device.to_json()
    assert (document["reserved_before_bytes"], document["idle_before_bytes"]) == (3100 * MiB, 2800 * MiB)
    found = explain(snapshot, file="snap.pickle", limit=2 * GiB)
    assert status_text(found.devices[0]) == (
        "MAY NOT FIT: 300.00 MiB requested at most since the recording began, but 3.03 GiB had been "
        "reserved before it, of 2.00 GiB available"
    )
    assert found.devices[0].verdict.headline.endswith(
        "3.03 GiB had been reserved before it, for a peak that is not in the file"
    )
    assert summary_of(found)["margin_bytes"] is None
    assert list(explain_report(found))[1].tone == "warn"
    [device] = explain(snapshot, file="snap.pickle", limit=4 * GiB).devices
    assert status_text(device).endswith("3.03 GiB reserved at most, 996.00 MiB to spare of 4.00 GiB")


def test_a_comparison_speaks_of_recorded_peaks():
    [device] = diff(Named("a", recorded()), Named("b", recorded(before=200 * MiB))).devices
    assert headline(device).startswith("THE RECORDED PEAK IS EQUAL")
    lost = "2.73 GiB reserved before A's recording are never used in it: an earlier peak is not in A"
    assert [text for text in remarks(device) if "earlier peak" in text] == [lost]


def test_ranks_whose_peak_is_lost_are_named(tmp_path: Path):
    for rank, before in enumerate((3000, 200, 2000)):
        write_snapshot(recorded(before=before * MiB), tmp_path / f"snap-{rank}.pickle")
    texts = [getattr(part, "text", "") for part in explain_report(explain_path(tmp_path).found)]
    assert "an earlier peak, before the recording began, is not in what is read of ranks 0, 2" in texts
