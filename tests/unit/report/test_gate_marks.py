"""Each verdict is told from every other by its shape, and red is a regression alone."""

from __future__ import annotations

import re

from oomscope.gate.night.status import Status, Tone, ruling
from oomscope.report.charts.marks import MARKS, in_order, mark, outlines


def test_every_verdict_has_a_shape_of_its_own_without_its_colour() -> None:
    assert set(MARKS) == set(Status)
    assert len({(one.outline, one.is_filled) for one in MARKS.values()}) == len(Status)


def test_colours_tell_what_passes_what_is_worse_and_what_has_no_answer() -> None:
    assert [status for status, one in MARKS.items() if one.tone == "bad"] == [Status.WORSE]
    for status, one in MARKS.items():
        tone = ruling([status]).tone
        assert (one.tone in {"bad", "none"}) == (tone is Tone.BAD)
        assert (one.tone == "warn") == (tone is Tone.WARN)


def test_no_mark_reaches_out_of_its_box() -> None:
    corners = [corner for one in MARKS.values() for point in one.outline for corner in point]
    assert max(abs(corner) for corner in corners) <= 6


def test_the_outlines_of_a_page_are_those_of_its_marks() -> None:
    statuses = [Status.SAME, Status.WORSE, Status.SAME]
    named = re.findall(r'id="([^"]+)"', outlines(statuses))
    assert [re.findall(r'href="#([^"]+)"', mark(status))[0] for status in in_order(statuses)] == named
    assert in_order(statuses) == [Status.WORSE, Status.SAME]
