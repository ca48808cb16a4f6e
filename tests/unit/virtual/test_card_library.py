"""The counts mean what the library's header says that they mean."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from oomscope.virtual import library, loading

HEADER = Path(__file__).parents[3] / "oomscope" / "virtual" / "csrc" / "card.h"


def test_the_fields_are_those_of_the_header_in_its_order() -> None:
    text = re.search(
        r"typedef struct oomscope_card_counts \{(.*?)\} oomscope_card_counts;", HEADER.read_text(), re.DOTALL
    )
    assert text
    declared = re.findall(r"^\s*uint64_t (\w+);", text[1], re.MULTILINE)
    assert [name for name, _ in library._Counts._fields_] == declared
    assert ctypes.sizeof(library._Counts) == 8 * len(declared)


def test_the_version_is_the_header_s() -> None:
    assert re.search(rf"^#define OOMSCOPE_CARD_VERSION {library._VERSION}$", HEADER.read_text(), re.MULTILINE)


def test_without_the_card_there_is_nothing_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_loaded", None)
    with pytest.raises(RuntimeError, match="not loaded"):
        library.state()
    with pytest.raises(RuntimeError, match="not loaded"):
        library.on_unknown_read(None)
