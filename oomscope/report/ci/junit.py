"""A night of the gate as JUnit XML, which CI systems show case by case.

JUnit knows two ways not to pass. A *failure* is a regression, the answer that the gate is there to give; an *error* is
a case that has no answer: no baseline, nothing measured, code that cannot be tested; or, of a strict night, one that
is better than its baseline.

CI systems know a case from one night to the next by the names of suite, class and case, so these are the same in every
checkout.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET

from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import Status
from oomscope.report.commands import gate_sentences
from oomscope.report.commands.gate_sentences import suite_path

SUITE: Final = "oomscope gate"
_SUFFIX: Final = ".yaml"
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold, not even escaped (XML 1.0, production Char)."""


def junit_document(night: GateResult) -> bytes:
    """Return the XML document: one ``testsuite`` with a ``testcase`` for each case."""
    statuses = [case.status for case in night.cases]
    failures = statuses.count(Status.WORSE)
    errors = sum(not night.ruling_of(case).passes for case in night.cases) - failures
    counts = {"tests": str(len(statuses)), "failures": str(failures), "errors": str(errors)}
    seconds = f"{sum(_seconds(case) for case in night.cases):.3f}"
    path = suite_path(night)
    root = ET.Element("testsuites", {"name": SUITE, **counts, "time": seconds})
    suite = ET.SubElement(root, "testsuite", {"name": _xml(path), **counts, "skipped": "0", "time": seconds})
    suite.set("timestamp", night.started.partition("+")[0])
    for case in night.cases:
        _add_case(suite, case, class_name(path), passes=night.ruling_of(case).passes)
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def class_name(path: str) -> str:
    """Return ``oomscope.ci.memory`` of the suite ``ci/memory.yaml``: Jenkins makes packages of what is before the dots.

    No two suites have one name: dots of a file's own are escaped, and ``%``, which escapes them.
    """
    parts = path.removesuffix(_SUFFIX).replace("%", "%25").replace(".", "%2E").split("/")
    return ".".join(["oomscope", *parts])


def _add_case(suite: ET.Element, case: CaseResult, class_name: str, *, passes: bool) -> None:
    attributes = {"name": _xml(case.name), "classname": _xml(class_name), "time": f"{_seconds(case):.3f}"}
    element = ET.SubElement(suite, "testcase", attributes)
    text = _xml("\n".join(_lines(case)))
    if passes:
        ET.SubElement(element, "system-out").text = text
        return
    kind = "failure" if case.status is Status.WORSE else "error"
    what = ET.SubElement(element, kind, {"type": str(case.status), "message": _xml(gate_sentences.headline(case))})
    what.text = text


def _lines(case: CaseResult) -> list[str]:
    lines = [f"{row.status}: {gate_sentences.exact_text(row)}" for row in case.rows]
    lines += [text for text in (case.reason, *case.notes) if text]
    if case.culprit is not None:
        lines.append(f"whose commit: {gate_sentences.culprit_text(case.culprit)}")
    return lines


def _seconds(case: CaseResult) -> float:
    return case.probe.wall_s if case.probe is not None else 0.0


def _xml(text: str) -> str:
    """Return ``text`` with what XML cannot hold written out."""
    return _NO_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
