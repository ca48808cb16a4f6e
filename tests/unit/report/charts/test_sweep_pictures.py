"""The page and the picture of a sweep show every combination, the best ones joined, and what was not measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import UsageError
from oomscope.probe.tuning.sweep import Axis, Sweep, SweepRow, with_front
from oomscope.probe.tuning.variants import Variant, VariantOutcome
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.pictures import sweep_picture
from oomscope.report.charts.scatter import sweep_plot
from oomscope.report.html.sweep import sweep_page
from oomscope.report.text.sweep import lines_of, requested_bytes, shares
from oomscope.units import GiB
from tests.unit.report.browser import browse, in_a_browser

AXES = (Axis("recompute", ("none", "<b>full</b>")), Axis("data.micro_batch_size", ("1", "2")))


def row(values: tuple[str, ...], outcome: VariantOutcome, live: int | None, slowdown: float | None) -> SweepRow:
    message = "rules refuse <it>" if outcome == "refused" else ""
    variant = Variant(
        overrides=(),
        outcome=outcome,
        message=message,
        requested_bytes=live,
        reserved_bytes=live,
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


def test_the_last_axis_lies_side_by_side(grid: Sweep) -> None:
    lines = lines_of(grid)
    assert [line.values for line in lines] == [("none",), ("<b>full</b>",)]
    assert [[cell.values[-1] for cell in line.cells] for line in lines] == [["1", "2"], ["1", "2"]]
    assert list(shares(grid.rows, requested_bytes).values()) == [0.5, 1.0, 0.0]


def test_a_page_holds_every_combination_and_escapes_it(grid: Sweep) -> None:
    page = sweep_page(grid, title="job <x>")
    assert "job &lt;x&gt;" in page
    assert "<b>full" not in page
    assert "4 combinations · 2 fits · 1 oom · 1 refused · this process may use 8.00 GiB of the card" in page
    assert page.count('class="dot good best"') == 2
    assert page.count('class="dot bad"') == 1
    assert 'class="number bad" style="--share:100.0%">10.00 GiB' in page
    assert "rules refuse &lt;it&gt;" in page
    assert page.count("●") == 2
    assert not re.search(r"(src|href)=", page)


def test_a_page_names_what_has_no_effect(grid: Sweep) -> None:
    assert "without effect" not in sweep_page(grid, title="x")
    first, *others = grid.rows
    idle = replace(first, variant=replace(first.variant, idle="does <nothing>"))
    page = sweep_page(replace(grid, rows=(idle, *others)), title="x")
    assert "Measured, and without effect" in page
    assert "does &lt;nothing&gt;" in page


def test_a_page_without_times_has_no_chart_of_them(grid: Sweep) -> None:
    rows = tuple(row(each.values, each.variant.outcome, each.variant.requested_bytes, None) for each in grid.rows)
    page = sweep_page(Sweep(axes=AXES, rows=rows), title="x")
    assert "Peak of requested memory" in page
    assert "Bytes against time" not in page
    assert "Estimated time a sequence</h2>" not in page


def test_an_interrupted_grid_says_so(grid: Sweep) -> None:
    rows = tuple(row(each.values, "interrupted", None, None) for each in grid.rows)
    page = sweep_page(Sweep(axes=AXES, rows=rows, interrupted=True), title="x")
    assert "It was interrupted" in page


def test_a_far_level_is_named_and_not_drawn(grid: Sweep) -> None:
    assert "may use 90.00 GiB: off the scale" in html_chart(sweep_plot(replace(grid, available_bytes=90 * GiB)))
    near = html_chart(sweep_plot(replace(grid, available_bytes=20 * GiB)))
    assert "off the scale" not in near
    assert 'style="bottom:100.00%"' in near


def test_a_picture_is_drawn_with_and_without_times(grid: Sweep) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    assert sweep_picture(grid, title="x").startswith(b"\x89PNG")
    rows = tuple(row(each.values, each.variant.outcome, each.variant.requested_bytes, None) for each in grid.rows)
    assert sweep_picture(Sweep(axes=AXES[1:], rows=rows[:2]), title="x").startswith(b"\x89PNG")
    nothing = tuple(row(each.values, "refused", None, None) for each in grid.rows)
    with pytest.raises(UsageError, match="nothing to draw"):
        sweep_picture(Sweep(axes=AXES, rows=nothing), title="x")


@pytest.mark.browser
@in_a_browser
def test_the_page_opens_without_a_complaint(grid: Sweep, tmp_path: Path) -> None:
    file = tmp_path / "grid.html"
    file.write_text(sweep_page(grid, title="x"), encoding="utf-8")
    done = browse(file)
    assert "CONSOLE" not in done.stderr
    assert 'data-sort="" tabindex="0"' in done.stdout
