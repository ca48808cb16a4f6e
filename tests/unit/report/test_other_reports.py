"""The reports of doctor, replay, advise and sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.errors import UsageError
from oomscope.probe.tuning.advise import Advice, Proposal
from oomscope.probe.tuning.sweep import Axis, Sweep, SweepRow, with_front
from oomscope.probe.tuning.variants import Variant, VariantOutcome
from oomscope.report.charts.pictures import sweep_picture
from oomscope.report.commands.advise import advice_report
from oomscope.report.commands.doctor import doctor_report
from oomscope.report.commands.replay import replay_report
from oomscope.report.commands.sweep import sweep_report
from oomscope.report.html.pages import sweep_page
from oomscope.snapshot.replay.fidelity import Fidelity, Mismatch
from oomscope.snapshot.replay.replay_table import ReplayTable, SettingReplayed
from oomscope.units import Bytes, GiB, MiB
from tests.unit.report.printed import folded, on_terminal, printed

OK = Check(part="torch", state=State.OK, found="torch 2.13.0+cpu, built without CUDA")
NOTE = Check(
    part="allocator settings",
    state=State.NOTE,
    found="PYTORCH_ALLOC_CONF is ignored",
    disables="torch reads PYTORCH_CUDA_ALLOC_CONF alone where both are set",
    remedy="unset one",
)
MISSING = Check(part="git", state=State.MISSING, found="there is no git", disables="bisect", remedy="install git")
FAILS = Check(
    part="torch", state=State.FAILS, found="not installed", disables="every probe", remedy="pip install torch"
)


def test_doctor_begins_with_the_answer_and_ends_with_remedies() -> None:
    card = Check(part="virtual card", state=State.OK, found="it has all that torch needs")
    first = [
        printed(doctor_report(Diagnosis(checks))).splitlines()[0]
        for checks in ((OK, MISSING, card), (OK, MISSING), (FAILS, MISSING))
    ]
    assert first == [
        "FIT: probes run here on virtual",
        "UNFIT: no GPU, and no virtual card can be loaded",
        "UNFIT: nothing can be measured here (torch)",
    ]
    text = folded(doctor_report(Diagnosis((OK, NOTE, MISSING, FAILS))))
    assert all(state in text for state in ("+ ok", "! note", "- missing", "x fails"))
    remarks = text.partition("Remarks and remedies")[2]
    assert "PYTORCH_ALLOC_CONF is ignored: torch reads PYTORCH_CUDA_ALLOC_CONF alone where both are set; unset" in text
    assert "git disables bisect; install git" in remarks
    assert "torch 2.13.0" not in remarks
    assert "Remarks and remedies" not in printed(doctor_report(Diagnosis((OK,))))
    assert max(map(len, on_terminal(doctor_report(Diagnosis((OK, NOTE, MISSING))), 60))) <= 60


def replayed(*mismatches: Mismatch) -> ReplayTable:
    row = SettingReplayed(
        name="as recorded",
        conf="",
        survives=True,
        failed_event=None,
        peak_reserved_bytes=20 * MiB,
        overhead_bytes=0,
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
        peak_requested_bytes=20 * MiB,
        peak_event=3,
        devices=(0,),
        caveats=(),
    )


def test_events_of_one_side_of_a_replay_are_reported_in_groups() -> None:
    def mismatch(event: int, recorded: bool, reason: str) -> Mismatch:
        return Mismatch(recorded=recorded, event=event, action="segment_map", size=event * MiB, stream=0, reason=reason)

    mismatches = (mismatch(3, True, "Ascend"), mismatch(5, False, "unexplained"), mismatch(7, True, "Ascend"))
    text = folded(replay_report(replayed(*mismatches)))
    assert "Differences between replay and recording Only What Events First Bytes Why" in text
    assert "recorded segment_map 2 3 10.00 MiB Ascend replayed segment_map 1 5 5.00 MiB unexplained" in text
    assert "Differences" not in printed(replay_report(replayed()))
    before = replace(replayed(), peak_event=-1)
    assert "20.00 MiB before the first event" in printed(replay_report(before))


def test_overrides_to_paste_are_whole_on_a_narrow_terminal() -> None:
    overrides = ("recompute.recompute_granularity=selective", "recompute.recompute_modules=[core_attn]", "a.b=1")
    fits = Variant(overrides=overrides, outcome="fits")
    proposal = Proposal(names=("core_attn",), variant=fits, slowdown=0.1, saved_bytes=GiB)
    lines = on_terminal(advice_report(Advice(now=Variant(overrides=(), outcome="oom"), fitting=(proposal,))), 60)
    pasted = lines[lines.index("To paste") + 1]
    assert pasted == "  recompute.recompute_granularity=selective 'recompute.recompute_modules=[core_attn]' a.b=1"


def test_advice_leads_with_a_change_that_leaves_room() -> None:
    def proposal(name: str, margin: int) -> Proposal:
        fits = Variant(overrides=("a.b=1",), outcome="fits", margin_bytes=margin, available_bytes=80 * GiB)
        return Proposal(names=(name,), variant=fits, slowdown=0.1, saved_bytes=GiB)

    def answer(*fitting: Proposal, now: Variant | None = None) -> str:
        now = now or Variant(overrides=(), outcome="oom")
        return on_terminal(advice_report(Advice(now=now, fitting=fitting)), 200)[1]

    cheap, roomy = proposal("cheap", GiB), proposal("roomy", 8 * GiB)
    left = "1.00 GiB to spare of 80.00 GiB"
    assert answer(cheap, roomy) == f"It fits with roomy (+10.0 % time a step); cheap is cheaper, but tight: {left}."
    assert answer(cheap) == f"It fits with cheap (+10.0 % time a step), which is tight: {left}."
    assert answer(roomy, cheap) == "It fits with roomy (+10.0 % time a step)."
    assert answer(now=cheap.variant) == f"It fits as it is, which is tight: {left}."


AXES = (Axis("recompute", ("none", "<b>full</b>")), Axis("data.micro_batch_size", ("1", "2")))


def row(values: tuple[str, ...], outcome: VariantOutcome, live: int | None, slowdown: float | None) -> SweepRow:
    message = "rules refuse <it>" if outcome == "refused" else ""
    variant = Variant(
        overrides=(),
        outcome=outcome,
        message=message,
        peak=None if live is None else Bytes(requested_bytes=live, reserved_bytes=live),
        verdict="capacity" if outcome == "oom" else None,
    )
    return SweepRow(values=values, variant=variant, slowdown=slowdown)


@pytest.fixture
def grid() -> Sweep:
    none, full = AXES[0].values
    rows = with_front(
        [
            row((none, "1"), "fits", 6 * GiB, 0.0),
            row((none, "2"), "oom", 10 * GiB, 0.1),
            row((full, "1"), "fits", 2 * GiB, 0.3),
            row((full, "2"), "refused", None, None),
        ]
    )
    return Sweep(axes=AXES, rows=tuple(rows), available_bytes=8 * GiB)


def test_text_and_page_of_a_sweep_hold_every_combination(grid: Sweep) -> None:
    first, *others = grid.rows
    idle = replace(first, variant=replace(first.variant, idle="does <nothing>"))
    sweep = replace(grid, rows=(idle, *others))
    text, page = folded(sweep_report(sweep)), sweep_page(sweep, title="job <x>")
    assert "4 combinations · 2 fits · 1 oom · 1 refused" in text
    assert "none 2 capacity 10.00 GiB 10.00 GiB - - +10.0 %" in text
    assert "<b>full</b> 2 rules refuse <it>" in text.partition("Not measured, and why")[2]
    assert "Measured, with a warning" in text
    assert "job &lt;x&gt;" in page
    assert "<b>full" not in page
    for piece in ("4 combinations · 2 fits · 1 oom · 1 refused", "does &lt;nothing&gt;", "rules refuse &lt;it&gt;"):
        assert piece in page
    assert page.count('class="dot good"') == 2
    assert page.count('class="dot bad faint"') == 1
    assert page.count("●") == 3, "two of the best, and what that means"
    assert "● 1<" in page
    assert "● 2<" in page
    assert page.count('class="dot-name') == 2


def test_a_picture_is_drawn_where_there_are_times(grid: Sweep) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    assert sweep_picture(grid, title="訓練.yaml").startswith(b"\x89PNG")
    timeless = replace(grid, rows=tuple(replace(each, slowdown=None) for each in grid.rows))
    assert "Bytes against time" not in sweep_page(timeless, title="x")
    with pytest.raises(UsageError, match="nothing to draw"):
        sweep_picture(timeless, title="x")
