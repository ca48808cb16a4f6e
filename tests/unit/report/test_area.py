from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.charts.curves import area
from oomscope.report.charts.html import SIDE
from oomscope.report.charts.plot import WANTED, Level, axis_from_zero
from oomscope.units import GiB
from tests.unit.report.test_bars import of_class, shares


@given(st.integers(1, 2**50))
def test_ticks_are_few_round_and_inside(top: int) -> None:
    marks = axis_from_zero(top).ticks
    assert marks[0] == 0
    assert marks[-1] <= top
    assert 1 <= len(marks) <= WANTED + 2
    assert len(set(marks)) == len(marks)


def test_ticks_of_a_card() -> None:
    assert axis_from_zero(9 * GiB).names == ("0", "2.0 GiB", "4.0 GiB", "6.0 GiB", "8.0 GiB")


@given(st.lists(st.integers(0, 2**45), max_size=50))
def test_an_area_has_a_point_a_value_inside_the_plot(values: list[int]) -> None:
    curves = of_class(area(values, title="t", level=Level(value=2**40, label="may use")), "curve")
    points = [point.split(",") for curve in curves for point in re.findall(r"[\d.]+,[\d.]+", curve.get("d", ""))]
    assert len(points) == len(values)
    assert all(0 <= float(x) <= SIDE and 0 <= float(y) <= SIDE for x, y in points)


def test_the_curve_and_the_level_share_one_scale() -> None:
    chart = area([0, GiB], title="t", level=Level(value=2 * GiB, label="may use"))
    assert of_class(chart, "curve")[0].get("d") == "M0.0,1000.0L1000.0,500.0"
    assert shares(of_class(chart, "level")[0])["bottom"] == 100


def test_a_level_far_above_the_curve_does_not_flatten_it() -> None:
    chart = area([0, GiB], title="t", level=Level(value=80 * GiB, label="may use"))
    assert of_class(chart, "curve")[0].get("d") == "M0.0,1000.0L1000.0,0.0"
    assert not of_class(chart, "level")
    assert "may use 80.00 GiB: off the scale" in [end.text for end in of_class(chart, "end")]


def test_a_title_cannot_become_markup() -> None:
    assert ET.fromstring(area([1], title='"><b>')).get("aria-label") == '"><b>'
