from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.bisect.results.result import BisectResult, ProbeRecord, Role
from oomscope.bisect.search.line import Answer
from oomscope.report.bisect_sentences import remedy
from oomscope.report.html.bisect import bisect_page
from oomscope.report.text.bisect import bisect_report
from tests.unit.report import searches
from tests.unit.report.test_bisect_text import rendered

LOG = "/state/logs/cccccccccc-1.txt"


def end(role: Role, answer: Answer, log: str | None = None) -> ProbeRecord:
    return replace(searches.PROBES[2], role=role, answer=answer, log=log)


def ended(*probes: ProbeRecord, axis: str = "commits") -> BisectResult:
    return replace(searches.UNTESTABLE_END, probes=probes, axis=axis)  # type: ignore[arg-type]


MEND = "repair the commit with --fixup, or build it with --setup"


@pytest.mark.parametrize(
    ("role", "axis", "said"),
    [
        ("good end", "commits", f"read {LOG}, then name a later good end (or --find-good), {MEND}"),
        ("bad end", "both", f"read {LOG}, then name an earlier bad end, {MEND}"),
        ("bad end", "config", f"read {LOG}, then mend what failed, or name another bad end"),
    ],
)
def test_an_end_that_cannot_be_tested_has_a_remedy(role: Role, axis: str, said: str) -> None:
    other: Role = "bad end" if role == "good end" else "good end"
    assert remedy(ended(end(other, Answer.GOOD), end(role, Answer.UNTESTABLE, LOG), axis=axis)) == said


def test_it_stands_in_both_reports() -> None:
    result = ended(end("good end", Answer.UNTESTABLE))
    said = "name a later good end (or --find-good), repair the commit with --fixup"
    assert f"What to do: {said}" in " ".join(rendered(bisect_report(result)).split())
    assert said in bisect_page(result, title="t")


def test_a_good_end_that_is_bad_already_has_one_too() -> None:
    both = (end("good end", Answer.BAD), end("bad end", Answer.BAD))
    assert str(remedy(ended(*both))).startswith("give an earlier good end, or --find-good")
    assert "--find-good" not in str(remedy(ended(*both, axis="config")))


def test_an_answer_needs_none() -> None:
    assert remedy(searches.COMMITS) is None
    assert remedy(ended(end("good end", Answer.BAD), end("bad end", Answer.GOOD))) is None
