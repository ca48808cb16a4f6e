"""The page on explanations explains every confidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.snapshot.infer.category_rules import Confidence

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("level", [each for each in Confidence if each is not Confidence.NONE])
def test_every_confidence_is_explained(level: Confidence) -> None:
    assert f"| `{level.label}` |" in PAGE
