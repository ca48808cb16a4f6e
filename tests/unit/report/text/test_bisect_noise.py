"""What a search believes is shown, likeliest first, and never rounded up to certainty."""

from __future__ import annotations

import io
from dataclasses import replace

from oomscope.bisect.results.noise import Posterior, percent
from oomscope.report.text.bisect import bisect_report
from oomscope.report.text.bisect_tables import likeliest
from oomscope.report.text.console import result_console, show
from tests.unit.report import searches

POSTERIOR = Posterior(
    rows=(("a" * 40, 0.0102), ("d" * 40, 0.9696), ("e" * 40, 0.0002)),
    none=0.0199,
    already=0.0001,
    confidence=0.9696,
    wanted=0.95,
)


def test_the_likeliest_come_first_and_the_rest_is_left_out() -> None:
    assert [name[0] for name, _ in likeliest(POSTERIOR)] == ["d", "a"]


def test_certainty_is_not_rounded_up() -> None:
    assert percent(0.99999) == "99.9 %"


def test_the_report_shows_the_culprit_with_its_probability_and_no_culprit() -> None:
    file = io.StringIO()
    show(result_console(file), bisect_report(replace(searches.COMMITS, posterior=POSTERIOR)))
    text = file.getvalue()
    assert "Probability of each candidate (95 % required)" in text
    assert "96.9 %" in text
    assert "none: the bad end is good" in text
    assert "or one before it" not in text


def test_a_search_that_believed_shows_nothing_of_it() -> None:
    file = io.StringIO()
    show(result_console(file), bisect_report(searches.COMMITS))
    assert "Probability of each candidate" not in file.getvalue()
