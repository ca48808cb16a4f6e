"""GitLab's code quality report: what its documentation asks of each object, and fingerprints that stay."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from oomscope.gate.result import CaseResult
from oomscope.gate.status import GRAVITY, Status
from oomscope.report.gate_gitlab import code_quality
from tests.unit.gate.nights import case_result, night

ROOT = Path("/repo")
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
    document = json.loads(code_quality(night(number, *cases), ROOT))
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
    suites = ("/repo/a/memory.yaml", "/repo/b/memory.yaml", "/elsewhere/memory.yaml")
    made = {json.loads(code_quality(replace(red, suite=suite), ROOT))[0]["fingerprint"] for suite in suites}
    assert len(made) == 3


@given(st.text(max_size=30))
def test_any_text_makes_a_document(text: str) -> None:
    (row,) = reported(replace(case_result(1, Status.UNTESTABLE), name=text or "x", reason=text * 100))
    assert len(row["description"]) <= 5000
    assert not re.search("[\x00-\x08\x1b]", row["description"])
