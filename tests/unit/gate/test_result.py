"""A night's document is read back whole, or refused in one line."""

from __future__ import annotations

import copy
import json

import pytest

from oomscope.errors import InputError
from oomscope.gate.result import GateResult
from oomscope.report.gate_junit import junit_document
from oomscope.report.gate_markdown import night_markdown
from oomscope.report.gate_night_html import night_page
from oomscope.report.gate_text import gate_report
from oomscope.units import GiB
from tests.unit.gate.nights import measured
from tests.unit.gate.test_run import run

RED = json.loads(json.dumps(run(measured(2 * GiB)).to_json()))
ROW = ("cases", 0, "metrics", 0)


def with_(path: tuple[str | int, ...], value: object) -> dict:
    """Return a red night's document with ``value`` at ``path``."""
    document = copy.deepcopy(RED)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize("value", ["abc", float("inf"), 1.5, True, []])
@pytest.mark.parametrize("path", [(*ROW, "expected"), (*ROW, "fail"), ("cases", 0, "values", "peak_live")])
def test_what_is_no_number_is_refused(path, value) -> None:
    with pytest.raises(InputError, match="is not whole"):
        GateResult.from_json(with_(path, value), where="night.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cases", 0, "line"), float("inf")),
        (("cases", 0, "notes"), [1]),
        (("cases", 0, "key", "gpu"), 1),
        (("cases", 0, "checkout"), 1),
        (("cases", 0, "standing"), {"commit": 1, "subject": "", "dirty": False}),
        ((*ROW, "name"), 1),
        ((*ROW, "status"), "purple"),
    ],
)
def test_what_is_of_another_kind_is_refused(path, value) -> None:
    with pytest.raises(InputError, match="is not whole"):
        GateResult.from_json(with_(path, value), where="night.json")


def test_a_metric_of_another_version_is_shown_by_its_name() -> None:
    night = GateResult.from_json(with_((*ROW, "name"), "swapped"), where="night.json")
    assert "swapped" in night_markdown(night, 60_000)
    assert b"swapped" in junit_document(night)
    assert "swapped" in night_page(night)
    assert gate_report(night)
