"""The examples of ``docs/verdict.md`` are what is said of the constructed cases of the same names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from oomscope.report.verdict_text import kind_text
from oomscope.snapshot.replay.gaps import TEXTS
from oomscope.snapshot.verdict_types import VerdictKind
from tests.unit.snapshot.cases import CASES

PAGE = (Path(__file__).parents[4] / "docs" / "verdict.md").read_text(encoding="utf-8")


def examples() -> dict[str, str]:
    """Return the quoted verdicts by the heading above each."""
    section = PAGE.split("## Examples")[1].split("\n## ")[0]
    found = re.findall(r"^### (.+?)\n\n(?:[^>\n].*\n)+\n((?:>.*\n)+)", section, re.MULTILINE)
    return {name: " ".join(line.removeprefix("> ") for line in quote.splitlines()) for name, quote in found}


def test_every_case_is_shown() -> None:
    assert list(examples()) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_example_is_the_report_of_its_case(name: str) -> None:
    verdict = CASES[name].verdict()
    assert examples()[name] == f"{kind_text(verdict)}. {verdict.headline}"


@pytest.mark.parametrize("name", [*get_args(VerdictKind), *TEXTS])
def test_every_kind_and_every_gap_is_explained(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("tag", ["foreign", "leak", "spurious", "later: capacity"])
def test_every_tag_is_explained_and_shown(tag: str) -> None:
    assert f"| `{tag}` |" in PAGE
    assert CASES[tag].verdict().tags == (tag,)
