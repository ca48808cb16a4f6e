from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.charts import TICKS, Bar, Level, area, bars, ticks
from oomscope.units import GiB


@given(st.integers(1, 2**50))
def test_ticks_are_few_round_and_inside(top: int) -> None:
    marks = ticks(top)
    assert marks[0] == 0
    assert marks[-1] <= top
    assert 1 <= len(marks) <= TICKS + 2
    assert len(set(marks)) == len(marks)


def test_ticks_of_a_card() -> None:
    assert ticks(9 * GiB) == [0, 2 * GiB, 4 * GiB, 6 * GiB, 8 * GiB]


@given(st.lists(st.integers(0, 2**45), max_size=50))
def test_an_area_has_a_point_a_value(values: list[int]) -> None:
    svg = ET.fromstring(area(values, title="t", level=Level(value=2**40, label="may use")))
    curves = [element for element in svg.iter() if element.get("class") == "curve"]
    assert [len(curve.get("points", "").split()) for curve in curves] == ([len(values)] if values else [])


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=60), st.integers(-(2**40), 2**40)
        ),
        max_size=8,
    )
)
def test_bars_are_well_formed_whatever_the_labels(rows: list[tuple[str, int]]) -> None:
    svg = ET.fromstring(bars([Bar(label=label, value=value, start=2**40) for label, value in rows], title="t"))
    boxes = list(svg.iter("rect"))
    assert len(boxes) == len(rows)
    assert all(float(box.get("width", 0)) >= 1 for box in boxes)


def test_bars_share_one_scale() -> None:
    svg = ET.fromstring(bars([Bar(label="a", value=GiB), Bar(label="b", value=2 * GiB)], title="t"))
    small, large = (float(box.get("width", 0)) for box in svg.iter("rect"))
    assert abs(large / small - 2) < 0.01


def test_labels_cannot_become_markup() -> None:
    svg = bars([Bar(label="<script>alert(1)</script>", value=1)], title="<b>")
    assert "<script>" not in svg
    assert "<b>" not in svg
