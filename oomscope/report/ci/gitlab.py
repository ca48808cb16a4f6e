"""A night as GitLab's code quality report, which a merge request shows beside the lines.

Source: GitLab's documentation, "Code Quality report format": a subset of the Code Climate specification.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from oomscope.gate.result import CaseResult, GateResult
from oomscope.gate.status import Status, Tone
from oomscope.printable import printable
from oomscope.report import gate_sentences
from oomscope.report.bisect_sentences import shortened
from oomscope.report.ci.places import place_of, suite_path

_LONGEST: Final = 1000
"""Characters of a description."""
_SEVERITIES: Final = {Tone.GOOD: "info", Tone.WARN: "minor", Tone.BAD: "major"}
_REGRESSION: Final = "critical"


def code_quality(night: GateResult) -> str:
    """Return the JSON document: an object for each case that is not as expected."""
    found = [_violation(case, night) for case in night.cases if case.status is not Status.SAME]
    return json.dumps(found, indent=2) + "\n"


def _violation(case: CaseResult, night: GateResult) -> dict[str, Any]:
    place = place_of(case, night)
    check = f"oomscope/{str(case.status).replace(' ', '-')}"
    return {
        "description": printable(shortened(f"{case.name}: {gate_sentences.case_text(case)}", _LONGEST)),
        "check_name": check,
        "fingerprint": _fingerprint(suite_path(night), case.name, check),
        "severity": _REGRESSION if case.status is Status.WORSE else _SEVERITIES[night.ruling_of(case).tone],
        "location": {"path": printable(place.path), "lines": {"begin": place.line}},
    }


def _fingerprint(*parts: str) -> str:
    """Return what tells a violation from others and is the same every night, wherever its line has moved to."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
