"""A search whose target tells no reserved bytes claims none, in any of its reports."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.results.sections import CodeVsConfig, Corner, HunkChange, Narrowed
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Bytes
from oomscope.report import dataframes
from oomscope.report.html.bisect import bisect_page
from oomscope.report.text.bisect import bisect_report, probe_line
from oomscope.report.text.console import result_console, show
from tests.unit.report import searches
from tests.unit.report.printed_searches import printed

_SIZES = Bytes(requested_bytes=5, reserved_bytes=77 * 2**30)
_CORNER = Corner(code="a" * 40, config="b" * 40, answer=Answer.BAD, reason="bad", bytes=_SIZES)
_HUNK = HunkChange(number=1, name="a.py", path="a.py", section="", is_guilty=True, delta=_SIZES, sites=())


def _with_hunks(result: BisectResult) -> BisectResult:
    assert isinstance(result.culprit, CommitCulprit)
    narrowed = Narrowed(candidates=2, hunks=(_HUNK,), delta=_SIZES, interaction=_SIZES, rest=_SIZES)
    square = CodeVsConfig(path="c.yaml", old_old=_CORNER, new_old=_CORNER, old_new=_CORNER, new_new=_CORNER)
    return replace(result, culprit=replace(result.culprit, narrowed=narrowed), square=square)


EVERY = {
    "commits": _with_hunks(searches.COMMITS),
    "keys": searches.KEYS,
    "steps": searches.STEPS,
    "suspects": searches.SUSPECTS,
}


def rendered(result: BisectResult) -> str:
    file = io.StringIO()
    show(result_console(file), bisect_report(result))
    for probe in result.probes:
        show(result_console(file), probe_line(probe))
    return file.getvalue()


@pytest.mark.parametrize("name", EVERY)
def test_no_report_claims_reserved_bytes(name: str) -> None:
    result = printed(EVERY[name])
    claim = re.compile(r"(reserved|overhead) +[-+]?[0-9]|77.00 GiB")
    assert claim.search(rendered(EVERY[name]))
    assert not claim.search(rendered(result))
    assert not claim.search(re.sub("<[^>]*>", " ", bisect_page(result, title="t")))


@pytest.mark.parametrize("name", EVERY)
def test_tables_and_documents_leave_them_out(name: str) -> None:
    result = printed(EVERY[name])
    document = json.dumps({**result.to_json(), "first_bad": None, "last_good": None, "verdict": None})
    claimed = re.compile(r'"(delta_)?(reserved|overhead)_bytes": (\d+)')
    assert {match[3] for match in claimed.finditer(document)} <= (
        {str(result.waterfall.threshold.overhead_bytes)} if result.waterfall else set()
    )
    steps = dataframes.steps(result)
    for column in ("delta_reserved_bytes", "delta_overhead_bytes", "since_good_reserved_bytes"):
        assert steps[column].isna().all()
    assert steps["delta_requested_bytes"].notna().all()
    assert dataframes.probes(result)["reserved_bytes"].isna().all()


def test_the_chart_of_steps_has_one_axis() -> None:
    page = bisect_page(printed(searches.STEPS), title="t")
    assert 'class="waterfall live-alone"' in page
    assert "cell overhead" not in page
    assert "cell reserved" not in page
    assert "cell overhead" in bisect_page(searches.STEPS, title="t")
