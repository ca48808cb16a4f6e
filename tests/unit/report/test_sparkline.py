from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from oomscope.report.text.layout import BARS, Sparkline, sparkline


@given(st.lists(st.integers(0, 2**40), max_size=300), st.integers(0, 200))
def test_never_wider_than_asked_and_shows_the_maximum(values: list[int], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    if line and max(values) > 0:
        assert BARS[-1] in line


def test_shape() -> None:
    assert sparkline([0, 4, 8], 10) == "▁▅█"
    assert sparkline([0, 8, 0, 0], 2) == "█▁"
    assert sparkline([0, 0], 2) == "▁▁"


def test_a_terminal_without_unicode_gets_ascii() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=20).print(Sparkline([1, 2, 3]))
    file.flush()
    assert file.buffer.getvalue().strip().isascii()
