"""The pages on probes and harnesses say what the code does."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from oomscope.probe.result import ErrorKind
from oomscope.probe.targets.context import Context
from oomscope.units import format_size
from oomscope.virtual.cards import CARDS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", CARDS)
def test_every_card_is_listed_with_its_total(name: str) -> None:
    assert f"| `{name}` | {format_size(CARDS[name].total_bytes)} |" in (DOCS / "probe.md").read_text()


@pytest.mark.parametrize("name", [field.name for field in fields(Context)])
def test_what_a_harness_is_told_is_listed(name: str) -> None:
    table = (DOCS / "probe.md").read_text().split("\n## A harness\n")[1].split("\n##")[0]
    assert f"`{name}`" in table


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_every_kind_of_failure_is_listed(kind: str) -> None:
    assert f"`{kind}`" in (DOCS / "probe.md").read_text()
