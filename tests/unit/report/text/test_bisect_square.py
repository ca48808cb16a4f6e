"""The square of code and configuration in the terminal's report."""

from __future__ import annotations

from dataclasses import replace

from oomscope.bisect.results.result import KeysCulprit
from oomscope.bisect.results.sections import CodeVsConfig, Corner
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Bytes
from oomscope.report.text.bisect import bisect_report
from oomscope.units import GiB
from tests.unit.report import searches
from tests.unit.report.text.test_bisect_text import rendered

OLD, NEW = "a" * 40, "d" * 40


def corner(code: str, config: str, answer: Answer, live: int | None) -> Corner:
    size = None if live is None else Bytes(requested_bytes=live * GiB, reserved_bytes=live * GiB)
    return Corner(code=code, config=config, answer=answer, reason=f"seen {live}", bytes=size)


SQUARE = CodeVsConfig(
    path="conf/train.yaml",
    old_old=corner(OLD, OLD, Answer.GOOD, 1),
    new_old=corner(NEW, OLD, Answer.GOOD, 2),
    old_new=corner(OLD, NEW, Answer.GOOD, 4),
    new_new=corner(NEW, NEW, Answer.BAD, 9),
)


def test_the_corners_and_what_only_both_bring() -> None:
    assert isinstance(searches.KEYS.culprit, KeysCulprit)
    result = replace(searches.COMMITS, axis="both", square=SQUARE, also=searches.KEYS.culprit)
    text = " ".join(rendered(bisect_report(result)).split())
    assert "aaaaaaaaaa dddddddddd good 4.00 GiB 4.00 GiB seen 4" in text
    assert "only together +4.00 GiB +4.00 GiB" in text
    assert "Keys of conf/train.yaml that contribute" in text
    assert searches.KEYS.culprit.keys[0].key in text
    assert "12 commits" in text


def test_a_corner_without_bytes() -> None:
    square = replace(SQUARE, old_new=corner(OLD, NEW, Answer.UNTESTABLE, None))
    text = rendered(bisect_report(replace(searches.NO_ANSWER, axis="both", square=square)))
    assert "untestable" in text
    assert "only together" not in text
    assert square.guilty == "unknown"
    assert square.to_json()["interaction"] is None
