from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.printable import printable, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode → 漢\n\tindented", "plain ünïcode → 漢\n\tindented"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("good\rbad", r"good\x0dbad"),
        ("\x9b2J\x7f\x00\x08", r"\x9b2J\x7f\x00\x08"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        (os.fsdecode(b"caf\xe9.yaml"), r"caf\xe9.yaml"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_but_lines_is_left_of_control_characters(text: str) -> None:
    shown = printable(text)
    assert all(letter in "\n\t" or unicodedata.category(letter) != "Cc" for letter in shown)
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"peak (\d+)", r"'peak (\d+)'"),
        ("it's", '"it\'s"'),
        ('"it\'s"', "'\"it's\"'"),
        ("two\nlines\x1b[0m", r"'two\nlines\x1b[0m'"),
    ],
)
def test_text_is_quoted_as_it_was_given(text: str, shown: str) -> None:
    assert quoted(text) == shown
