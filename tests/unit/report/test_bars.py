from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.charts.bars import Bar, bars
from oomscope.report.charts.plot import Level
from oomscope.units import GiB

LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=60)


def of_class(chart: str, name: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(chart).iter() if name in (element.get("class") or "").split()]


def shares(element: ET.Element) -> dict[str, float]:
    return {key: float(value) for key, value in re.findall(r"([a-z]+):(-?[\d.]+)%", element.get("style", ""))}


@given(st.lists(st.tuples(LABELS, st.integers(-(2**41), 2**40)), max_size=8))
def test_every_row_has_its_name_its_bar_inside_the_track_and_its_value(rows: list[tuple[str, int]]) -> None:
    chart = bars([Bar(label=label, value=value, start=2**40) for label, value in rows], title="t")
    assert [name.text or "" for name in of_class(chart, "name")] == [label for label, _ in rows]
    assert len(of_class(chart, "value")) == len(rows)
    for bar in of_class(chart, "bar"):
        left, width = shares(bar)["left"], shares(bar)["width"]
        assert 0 <= left <= left + width <= 100.02


def test_bars_share_one_scale() -> None:
    small, large = of_class(bars([Bar(label="a", value=GiB), Bar(label="b", value=2 * GiB)], title="t"), "bar")
    assert (shares(small)["width"], shares(large)["width"]) == (50, 100)


def test_a_level_is_a_line_across_every_bar_and_named_below() -> None:
    rows = [Bar(label="a", value=GiB), Bar(label="b", value=2 * GiB)]
    chart = bars(rows, title="t", level=Level(value=4 * GiB, label="may use"))
    assert [shares(line)["left"] for line in of_class(chart, "level")] == [100, 100]
    assert [name.text for name in of_class(chart, "level-name")] == ["may use 4.00 GiB"]


def test_a_level_far_above_everything_does_not_flatten_the_bars() -> None:
    chart = bars([Bar(label="a", value=GiB)], title="t", level=Level(value=80 * GiB, label="may use"))
    assert shares(of_class(chart, "bar")[0])["width"] == 100
    assert not of_class(chart, "level")
    assert of_class(chart, "level-name")[0].text == "may use 80.00 GiB: off the scale"


def test_labels_cannot_become_markup() -> None:
    chart = bars([Bar(label="<script>alert(1)</script>", value=1)], title="<b>")
    assert "<script>" not in chart
    assert "<b>" not in chart
