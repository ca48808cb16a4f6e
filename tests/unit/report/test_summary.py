"""Summaries: the same keys for each command, small whatever is found, and the numbers of the whole document."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.gate.night.status import Status
from oomscope.probe.result import Site, SiteBytes
from oomscope.report.exports.summary import Summary, summary_of
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB
from tests.unit.gate.nights import case_result, night
from tests.unit.report import differences, drawn, results, searches

LONG = "/a/very/long/path/" * 40
HUGE = replace(
    results.FITS,
    peak=replace(
        results.PEAK,
        sites=tuple(
            SiteBytes(
                site=Site(file=f"{LONG}{index}.py", line=index, function="λ" * 200), bytes=GiB, count=1, category="x"
            )
            for index in range(50)
        ),
    ),
)
OUT = night(1, replace(case_result(1, Status.WORSE, name="n" * 500), reason="r" * 5000))
EVERY = {
    "fits": results.FITS,
    "oom": results.OOM,
    "failed": results.BROKEN,
    "long": HUGE,
    "explained": drawn.explained(drawn.failing())[0],
    "grew": differences.GREW,
    "equal": differences.EQUAL,
    "night": OUT,
    **{f"search {index}": result for index, result in enumerate(searches.EVERY)},
}


@pytest.mark.parametrize("result", EVERY.values(), ids=EVERY)
def test_every_summary_has_the_same_keys_and_is_below_2_kb(result) -> None:
    found = summary_of(result)
    assert list(found) == ["schema_version", *(field.name for field in fields(Summary))]
    assert len(json.dumps(found)) < 2048


def test_a_search_names_the_bytes_whose_differences_it_names() -> None:
    search = searches.COMMITS
    whole = replace(results.PEAK, requested_bytes=70 * GiB, reserved_bytes=90 * GiB)
    first_bad = replace(
        search.first_bad, result=replace(search.first_bad.result, demand_peak=whole, demand_bytes=70 * GiB)
    )
    found = summary_of(replace(search, first_bad=first_bad))
    assert (found["peak_requested_bytes"], found["peak_reserved_bytes"]) == (70 * GiB, 90 * GiB)


def test_numbers_are_those_of_the_documents() -> None:
    found = summary_of(results.OOM)
    assert (found["command"], found["outcome"], found["verdict"]) == ("probe", "oom", "fragmentation")
    assert found["peak_requested_bytes"] == results.OOM.to_json()["peak"]["requested_bytes"]
    assert found["cured_by"] == ["expandable_segments:True"]
    assert found["lines"][0] == {"line": str(results.MLP), "category": "activation", "bytes": 5 * GiB}
    search = summary_of(searches.COMMITS)
    assert search["commit"] == searches.COMMITS.culprit.commit
    assert search["delta_requested_bytes"] == searches.CHANGE.requested_bytes
    explained = summary_of(EVERY["explained"])
    assert explained["outcome"] == "oom"
    assert explained["line"].endswith("model.py:40 forward")


def test_the_command_prints_it_with_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_snapshot(drawn.failing(), tmp_path / "s.pickle"))
    assert run(["explain", file, "--json", "--summary"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "oom"
    assert run(["explain", file, "--summary"]) == 2
    assert "--summary without --json" in capsys.readouterr().err


def test_the_page_on_summaries_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "summary.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == [field.name for field in fields(Summary)]
