"""The pages in docs/ say what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.build.configuration import configuration_page, write_pages
from oomscope.config.load import load_text

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("page", ["configuration.md", "rules.md"])
def test_page_is_current(tmp_path: Path, page: str) -> None:
    write_pages(tmp_path)
    assert (DOCS / page).read_text(encoding="utf-8") == (tmp_path / page).read_text(encoding="utf-8"), "run `make docs`"


def test_example_is_valid() -> None:
    example = configuration_page().split("```yaml\n")[1].split("```")[0]
    assert load_text(example, source="docs").warnings == ()
