"""The examples of a red night are what the code makes of their document, and are read by those they are for."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
import xmlschema

from oomscope.gate.night.result import GateResult
from tests.unit.report.browser import browse, in_a_browser
from tests.unit.report.test_pages import Balance

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
MAKE = runpy.run_path(str(EXAMPLES / "make.py"))
SCHEMAS = ROOT / "tests" / "unit" / "report" / "ci" / "schemas"


def text(folder: Path, name: str) -> str:
    """Return an output; the footer of a page names the version that rendered it, which is no part of the example."""
    return re.sub(r"<footer>oomscope [^ ]+", "<footer>oomscope", (folder / name).read_text(encoding="utf-8"))


def test_the_examples_are_current(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "night.json", tmp_path)
    MAKE["render"](tmp_path)
    for name in MAKE["FILES"].values():
        assert text(tmp_path, name) == text(EXAMPLES, name), "run python docs/examples/make.py"


def test_the_document_is_a_red_night_with_a_culprit_and_a_verdict() -> None:
    document = json.loads(text(EXAMPLES, "night.json"))
    night = GateResult.from_json(document, where="night.json")
    red, same = night.cases
    assert (night.exit_code, red.status, same.status) == (1, "worse", "same")
    assert red.culprit.subject == "Let the longest bucket hold 1600 tokens"
    assert red.probe.verdict.kind == "fragmentation"
    assert json.loads(text(EXAMPLES, "night.json"), object_hook=MAKE["replaced"]) == document


@pytest.mark.parametrize("name", ["night.json", *MAKE["FILES"].values()])
def test_no_example_contains_the_path_where_it_was_made(name: str) -> None:
    paths = re.findall(r"(?<![\w./])/(?:home|root|tmp|work|Users|var)\b[^\s\"<]*", text(EXAMPLES, name))
    assert paths == []


def test_each_is_what_its_reader_expects() -> None:
    xmlschema.XMLSchema(SCHEMAS / "junit.xsd").validate(EXAMPLES / "night.xml")
    page = Balance()
    page.feed(text(EXAMPLES, "night.html"))
    assert page.open == []
    assert set(MAKE["FILES"].values()) | {"night.json", "make.py"} <= {path.name for path in EXAMPLES.iterdir()}
    readme = text(EXAMPLES, "README.md")
    assert all(f"[{name}]({name})" in readme and f"`{option}`" in readme for option, name in MAKE["FILES"].items())


@pytest.mark.browser
@in_a_browser
def test_the_page_opens_without_a_complaint(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "night.html", tmp_path)
    done = browse(tmp_path / "night.html")
    assert "CONSOLE" not in done.stderr
    assert "Let the longest bucket hold 1600 tokens" in done.stdout
