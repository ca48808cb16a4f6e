"""GitLab's code quality report: what its documentation asks of each object, and fingerprints that stay."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from oomscope.gate.home import Home
from oomscope.gate.result import CaseResult
from oomscope.gate.status import GRAVITY, Status
from oomscope.report.ci.gitlab import code_quality
from tests.unit.gate.nights import case_result, night

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "pattern": r"^oomscope/[a-z-]+$"},
            "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "pattern": "^[^/]"},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
    },
}
"""As "Code Quality report format" of GitLab's documentation has it; ``location.path`` has to be relative."""


def reported(*cases: CaseResult, number: int = 1) -> list[dict]:
    document = json.loads(code_quality(night(number, *cases)))
    jsonschema.validate(document, SCHEMA)
    return document


def test_every_status_but_same_is_reported() -> None:
    found = reported(*(case_result(1, status, name=str(status)) for status in GRAVITY))
    assert [row["check_name"].removeprefix("oomscope/").replace("-", " ") for row in found] == list(GRAVITY)[:-1]
    severities = {row["check_name"]: row["severity"] for row in found}
    assert severities["oomscope/worse"] == "critical"
    assert severities["oomscope/untestable"] == severities["oomscope/no-baseline"] == "major"
    assert severities["oomscope/warn"] == "minor"


def test_green_is_an_empty_report() -> None:
    assert reported(case_result(1)) == []


def test_a_fingerprint_stays_over_nights_and_tells_cases_apart() -> None:
    case = case_result(1, Status.WORSE)
    (first,), (second,) = reported(case), reported(replace(case, line=9, reason="more"), number=2)
    assert first["fingerprint"] == second["fingerprint"]
    others = reported(case, replace(case, name="other"), replace(case, status=Status.WARN))
    assert len({row["fingerprint"] for row in others}) == 3


def test_a_fingerprint_tells_suites_of_one_name_apart() -> None:
    red = night(1, case_result(1, Status.WORSE))
    homes = (Home(path="a/memory.yaml"), Home(path="b/memory.yaml"), None)
    made = {json.loads(code_quality(replace(red, home=home)))[0]["fingerprint"] for home in homes}
    assert len(made) == 3


def test_a_fingerprint_is_the_same_in_every_checkout() -> None:
    red = replace(night(1, case_result(1, Status.WORSE)), home=Home(path="ci/memory.yaml"))
    moved = replace(red, suite="/builds/123/ci/memory.yaml")
    assert code_quality(red) == code_quality(moved)


@given(st.text(max_size=30))
def test_any_text_makes_a_document(text: str) -> None:
    (row,) = reported(replace(case_result(1, Status.UNTESTABLE), name=text or "x", reason=text * 100))
    assert len(row["description"]) <= 5000
    assert not re.search("[\x00-\x08\x1b]", row["description"])
