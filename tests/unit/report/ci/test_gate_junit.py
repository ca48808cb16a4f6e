"""JUnit XML of a night: the counts, what is a failure and what an error, and any text at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from oomscope.gate.night.compare import compare_metric
from oomscope.gate.night.result import Culprit
from oomscope.gate.night.status import GRAVITY, Status, ruling
from oomscope.gate.suite.identity import Home
from oomscope.gate.suite.metrics import EXACT
from oomscope.report.ci.junit import class_name, junit_document
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result, night

SCHEMA = xmlschema.XMLSchema(Path(__file__).parent / "schemas" / "junit.xsd")


def parsed(*cases) -> ET.Element:
    root = ET.fromstring(junit_document(night(1, *cases)))
    SCHEMA.validate(root)
    return root


def test_counts_are_those_of_the_cases() -> None:
    root = parsed(*(case_result(1, status, name=str(status)) for status in GRAVITY))
    assert root.attrib["tests"] == str(len(GRAVITY)) == str(len(root.findall("testsuite/testcase")))
    assert root.attrib["failures"] == str(len(root.findall(".//failure"))) == "1"
    assert root.attrib["errors"] == str(len(root.findall(".//error"))) == "7"


@pytest.mark.parametrize("status", GRAVITY)
def test_what_does_not_pass_is_what_the_exit_code_says(status: Status) -> None:
    root = parsed(case_result(1, status))
    failed = root.findall(".//failure") + root.findall(".//error")
    assert bool(failed) == (ruling([status]).exit_code != 0)
    assert bool(root.findall(".//failure")) == (status is Status.WORSE)


@pytest.mark.parametrize("strict", [True, False])
def test_better_is_an_error_of_a_strict_night_alone(strict: bool) -> None:
    found = replace(night(1, case_result(1, Status.BETTER)), strict=strict)
    (suite,) = ET.fromstring(junit_document(found))
    assert suite.get("errors") == ("1" if strict else "0")
    assert (suite.find("testcase/error") is not None) == strict


def test_a_regression_says_its_numbers_and_whose_commit_it_was() -> None:
    row = compare_metric("peak_requested", GiB, GiB + MiB, EXACT)
    culprit = Culprit(outcome="culprit", message="", commit="c" * 40, subject="Grow", author="Ada")
    root = parsed(replace(case_result(1, Status.WORSE), rows=(row,), culprit=culprit))
    (failure,) = root.findall(".//failure")
    assert failure.attrib["message"] == (
        "worse: peak_requested 1.00 GiB, expected 1.00 GiB (+1.00 MiB; 1074790400 and 1073741824)"
    )
    assert "cccccccccc Grow, by Ada" in (failure.text or "")


def test_names_are_those_of_every_checkout() -> None:
    found = replace(night(1, case_result(1), case_result(1, name="tiny rank 0")), home=Home(path="ci/memory.yaml"))
    first, second = (junit_document(replace(found, suite=f"/builds/{run}/ci/memory.yaml")) for run in (1, 2))
    assert first == second
    (suite,) = ET.fromstring(first)
    assert suite.get("name") == "ci/memory.yaml"
    named = [(case.get("classname"), case.get("name")) for case in suite]
    assert named == [("oomscope.ci.memory", "tiny"), ("oomscope.ci.memory", "tiny rank 0")]


def test_no_two_suites_have_one_class() -> None:
    paths = ("memory.yaml", "memory.yml", "ci/memory.yaml", "ci.memory.yaml", "ci%2Ememory.yaml", "ci/memory.yaml.yaml")
    assert len({class_name(path) for path in paths}) == len(paths)
    assert class_name("ci/memory v1.2.yaml") == "oomscope.ci.memory v1%2E2"


@given(st.text(st.characters(), max_size=30))
def test_any_text_makes_a_document(text: str) -> None:
    parsed(replace(case_result(1, Status.UNTESTABLE, name=text or "x"), reason=text, notes=(text,)))
