"""Charts: equal areas are equal bytes, curves end where they should, and a picture has the colours of the page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import UsageError
from oomscope.gate.ledger.history import trends
from oomscope.gate.night.status import Status
from oomscope.report.charts import pictures, png
from oomscope.report.charts.curves import Series, curves, curves_data
from oomscope.report.charts.plot import axis_of
from oomscope.report.charts.segments import (
    GAP,
    HEIGHT,
    NAMES_IN_ORDER,
    WIDTH,
    segment_chart,
    strip_of,
)
from oomscope.report.charts.segments_over_time import state_data
from oomscope.report.charts.trend import trend_plot
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.explain.drawing import FloorPlan, still
from oomscope.snapshot.explain.states import PENDING
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Block, Segment
from oomscope.units import GiB, KiB, MiB
from tests.unit.gate.nights import case_result
from tests.unit.report import drawn
from tests.unit.report.test_pages import point

HERE = Site(file="here.py", line=1, function="f")


def plan(*segments: list[tuple[int, str]]) -> FloorPlan:
    """Return segments of blocks of these sizes and categories; ``pending`` is one, no category a gap."""
    placed, made, address = [], {}, 1 << 40
    states = {"": "inactive", PENDING: "active_pending_free"}
    for blocks in segments:
        start, rows = address, []
        for size, what in blocks:
            state = states.get(what, "active_allocated")
            rows.append(Block(address=address, size=size, requested_size=size, state=state))
            made[address] = HERE, "activation" if what == PENDING else what
            address += size
        facts = {"device": 0, "stream": 0, "segment_type": "large", "is_expandable": False}
        placed.append(Segment(address=start, total_size=address - start, blocks=tuple(rows), **facts))
    return FloorPlan(event=0, segments=tuple(placed), made=made)


BLOCKS = st.tuples(st.integers(1, 64 * MiB), st.sampled_from(["", PENDING, "parameter", "activation"]))
PLANS = st.lists(st.lists(BLOCKS, min_size=1, max_size=8), min_size=1, max_size=40).map(lambda rows: plan(*rows))


@given(PLANS)
def test_the_strip_holds_every_byte(drawn: FloorPlan) -> None:
    strip = strip_of(drawn)
    assert sum(piece.size for piece in strip.pieces) == drawn.reserved_bytes == sum(strip.totals.values())
    blocks = [block for segment in drawn.segments for block in segment.blocks]
    assert strip.totals[GAP] == sum(block.size for block in blocks if block.state == "inactive")
    assert strip.line_bytes * strip.lines >= drawn.reserved_bytes


@given(PLANS, st.integers(0, 2**30), st.integers(1, 2**30))
def test_boxes_are_as_wide_as_their_bytes(drawn: FloorPlan, at: int, size: int) -> None:
    strip = strip_of(drawn)
    size = min(size, 50 * strip.line_bytes)
    boxes = list(strip.boxes(at, size))
    assert sum(right - left for _, left, right in boxes) == pytest.approx(size * WIDTH / strip.line_bytes)
    assert [line for line, *_ in boxes] == list(range(at // strip.line_bytes, (at + size - 1) // strip.line_bytes + 1))


def test_segments_too_narrow_are_one_piece_that_says_so() -> None:
    strip = strip_of(plan([(900 * MiB, "parameter")], *([(1 * MiB, "activation"), (1 * MiB, "")] for _ in range(12))))
    assert len(strip.pieces) == 13
    strip = strip_of(plan([(90_000 * MiB, "parameter")], *([(512 * KiB, "activation"), (MiB, "")] for _ in range(312))))
    _, folded = strip.pieces
    assert folded.tiles == ((GAP, 312 * MiB), ("activation", 156 * MiB))
    said = "At the end 312 large segments too narrow to draw, together 468.00 MiB, 312.00 MiB unused."
    assert said in strip.caption


def test_a_map_of_one_line_and_the_data_of_the_script() -> None:
    strip = strip_of(plan([(30 * MiB, "parameter"), (10 * MiB, ""), (40 * MiB, PENDING)]))
    chart = ET.fromstring(segment_chart(strip, "map", table="lines", when="at the end"))
    paths = {path.get("class"): path.get("d") for path in chart.iter("path")}
    assert paths["fill parameter"] == f"M0.00,2H375.00v{HEIGHT - 4}H0.00z"
    assert paths["fill gap"] == f"M375.00,2H500.00v{HEIGHT - 4}H375.00z"
    assert paths["fill pending"] == f"M500.00,2H1000.00v{HEIGHT - 4}H500.00z"
    legend = ["".join(key.itertext()) for key in chart.iter() if "key" in (key.get("class") or "").split()]
    assert legend == ["parameter 30.00 MiB", "waiting for a stream 40.00 MiB", "free 10.00 MiB"]
    floor = plan([(3 * MiB, "parameter"), (MiB, "")], [(2 * MiB, "activation")])
    data = state_data(still(floor), strip_of(floor))
    assert (data["pages"]["rows"], data["blocks"]["rows"], data["rows"]) == (2, 2, 1)
    assert data["addresses"] == ["0x10000000000", "0x10000400000"]
    assert data["areas"] == ["segment of 4.00 MiB (large)", "segment of 2.00 MiB (large)"]
    assert data["sites"] == ["here.py:1 f"]


def test_curves_end_and_peak_where_they_should() -> None:
    series = (
        Series(label="A", values=(0, 5, 1), style="first"),
        Series(label="B", values=(10, 0, 0), style="second"),
    )
    stretches = (("iteration 0", 0.0), ("iteration 1", 0.5))
    chart = ET.fromstring(curves(series, title="t", stretches=stretches))
    a, b = (line.get("d") for line in chart.iter("path"))
    assert a == "M0.0,1000.0L500.0,500.0L1000.0,900.0"
    assert b == "M0.0,0.0L500.0,1000.0L1000.0,1000.0"
    styles = {each.get("class"): each.get("style") for each in chart.iter("span")}
    assert styles["peak first"] == "left:50.00%;bottom:50.00%"
    assert styles["peak second"] == "left:0.00%;bottom:100.00%"
    assert {"iteration 0", "iteration 1", "A, peak 5 B"} <= {each.text for each in chart.iter("span")}


def test_what_grew_and_what_shrank_between_two_runs_is_filled() -> None:
    a = Series(label="A", values=(4, 4, 4), style="first")
    b = Series(label="B", values=(4, 8, 2), style="second", places=(0, 0.5, 0.75))
    chart = ET.fromstring(curves((a, b), title="t", compared=(a, b)))
    grew, shrank = (line.get("d") for line in chart.iter("path") if "fill" in (line.get("class") or ""))
    assert grew == "M0.0,500.0L500.0,0.0L750.0,500.0L750.0,500.0L500.0,500.0L0.0,500.0Z"
    assert shrank == "M0.0,500.0L500.0,0.0L750.0,500.0L750.0,750.0L500.0,0.0L0.0,500.0Z"
    data = curves_data((a, b))
    assert (data["labels"], data["columns"], data["rows"]) == (["A", "B"], 3, 4)


def test_a_trend_is_joined_where_nights_can_be_compared_and_marks_its_largest_step() -> None:
    cases = (
        case_result(1),
        case_result(2, Status.WORSE, live=GiB + MiB),
        replace(case_result(3, Status.UNTESTABLE), values={}, key=None),
        case_result(4, live=GiB + MiB),
    )
    (trend,) = trends([point(at, case) for at, case in enumerate(cases, start=1)], "peak_requested")
    plot = trend_plot(trend, trend.entries)
    assert [[x for x, _ in line.points] for line in plot.lines] == [[0.5, 1.5], [3.5]]
    assert [mark.style for mark in plot.marks] == ["dot good", "dot bad", "dot none", "dot good"]
    assert [mark.name for mark in plot.marks] == ["", "+1.00 MiB", "", ""]
    assert plot.uprights == [(2.5, "missed")]
    assert [key.text for key in plot.legend] == ["worse", "untestable", "same"]
    assert [tick.text for tick in plot.ticks] == [f"2026-01-0{day}" for day in (1, 2, 3, 4)]


@given(st.lists(st.integers(1, 2**46), min_size=1, max_size=9))
def test_an_axis_of_a_trend_holds_every_value_between_its_ends(values: list[int]) -> None:
    axis = axis_of("peak_requested", values)
    assert axis.low <= min(values)
    assert max(values) <= axis.top
    assert len(set(axis.names)) == len(axis.ticks) >= 1


def test_a_picture_has_a_panel_for_the_timeline_and_one_for_the_segments() -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    found, drawings = drawn.explained(drawn.failing())
    both = pictures.explain_picture(found, drawings)
    assert both.startswith(b"\x89PNG")
    only = pictures.explain_picture(found, [replace(drawings[0], plan=None)])
    assert int.from_bytes(both[16:20], "big") == int.from_bytes(only[16:20], "big")
    assert int.from_bytes(both[20:24], "big") > int.from_bytes(only[20:24], "big")
    empty = Bins(
        **{name: value[:0] if hasattr(value, "ndim") else value for name, value in vars(drawings[0].bins).items()}
    )
    with pytest.raises(UsageError, match="nothing to draw"):
        pictures.explain_picture(found, [replace(drawings[0], bins=empty, plan=None)])


def test_the_picture_has_the_colours_of_the_page() -> None:
    assert {*NAMES_IN_ORDER, "good", "bad", "warn"} <= set(png.COLOURS)
    assert (png.COLOURS["parameter"], png.COLOURS["oom"]) == ("#3b6fb6", "#b3362b")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib") as refused:
        png.require_matplotlib()
    assert "pip install 'oomscope[plots]'" in str(refused.value)
