"""A night's document is read back whole, or refused in one line."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from oomscope.errors import InputError
from oomscope.gate.night.result import Culprit, GateResult, GrownLine, Place
from oomscope.gate.suite.identity import Home
from oomscope.probe.result import Site
from oomscope.report.ci.github import summary
from oomscope.report.ci.junit import junit_document
from oomscope.report.html.pages import night_page
from oomscope.units import GiB
from tests.unit.gate.nights import measured
from tests.unit.gate.test_run import run

GROWN = GrownLine(site=Site(file="train.py", line=3, function="step"), category="activations", delta_bytes=GiB)
CULPRIT = Culprit(outcome="culprit", message="found", commit="b" * 40, grown=(GROWN,), commands=("true",))
WORSE = run(measured(2 * GiB))
HOME = Home(path="ci/memory.yaml", first_commit="a" * 40, remote="group/project")
RED_CASE = replace(WORSE.cases[0], culprit=CULPRIT, place=Place(path="train.py", line=3))
VARIABLES = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
WHOLE = replace(WORSE, home=HOME, variables=VARIABLES, cases=(RED_CASE,), unwatched=("gone",))
RED = json.loads(json.dumps(WHOLE.to_json()))
ROW = ("cases", 0, "metrics", 0)


def with_(path: tuple[str | int, ...], value: object) -> dict:
    """Return a red night's document with ``value`` at ``path``."""
    document = copy.deepcopy(RED)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*ROW, "expected"), 1.5),
        ((*ROW, "fail"), True),
        (("cases", 0, "values", "peak_requested"), float("inf")),
        ((*ROW, "status"), "purple"),
        (("started",), "a\u0001b"),
        (("suite",), "a\0b"),
        (("home", "branch"), "main"),
        (("cases", 0, "culprit", "grown", 0, "delta_bytes"), "5"),
        (("cases", 0, "probe", "peak", "reserved_bytes"), "a"),
        (("cases",), []),
    ],
)
def test_what_is_of_another_kind_is_refused(path, value) -> None:
    with pytest.raises(InputError, match="is not valid"):
        GateResult.from_json(with_(path, value), where="night.json")


def test_what_is_read_back_is_what_was_written() -> None:
    assert GateResult.from_json(RED, where="night.json") == WHOLE


@pytest.mark.parametrize(
    "path", [("suite",), ("cases", 0, "name"), ("cases", 0, "reason"), ("cases", 0, "culprit", "author")]
)
def test_half_a_character_breaks_no_form(path) -> None:
    night = GateResult.from_json(with_(path, "\ud800"), where="night.json")
    assert "ud800" not in json.dumps(night.to_json())
    assert summary(night, 60_000).encode()
    assert junit_document(night)
    assert night_page(night).encode()


def test_a_time_is_one_in_utc_and_xml_can_hold_it() -> None:
    night = GateResult.from_json(with_(("started",), "2026-02-03T04:05:06.7+02:00"), where="night.json")
    assert night.started == "2026-02-03T02:05:06+00:00"
    shown = GateResult.from_json(with_(("started",), "2026-02-03\u000104:05:06"), where="night.json")
    assert ET.fromstring(junit_document(shown)).find("testsuite").get("timestamp") == "2026-02-03T04:05:06"


def test_cases_that_are_no_longer_watched_are_reported_in_every_form() -> None:
    said = "not measured, since only the baseline has them: gone; oomscope gate update removes them"
    assert said in summary(WHOLE, 60_000)
    assert said in night_page(WHOLE)
    many = replace(WHOLE, unwatched=tuple(f"gone{number}" for number in range(12)))
    assert "gone9 and 2 more" in summary(many, 60_000)
