"""Signs that an encoding lacks are written as what they look like, all other characters as their escapes."""

from __future__ import annotations

import io

import pytest

from oomscope.cli.terminal.streams import IN_PLAIN_SIGNS


@pytest.mark.parametrize(
    ("text", "encoding", "written"),
    [
        ("snap.pickle · rank 0", "ascii", "snap.pickle - rank 0"),
        ("78.1 %   ████", "ascii", "78.1 %   ####"),
        ("…/train.py:3 step", "ascii", ".../train.py:3 step"),
        ("5 GiB → 6 GiB", "latin-1", "5 GiB -> 6 GiB"),
        ("a · b █", "latin-1", "a \xb7 b #"),
        ("a · b █ \udc80", "utf-8", "a · b █ \\udc80"),
        ("modèle 模", "ascii", "mod\\xe8le \\u6a21"),
    ],
)
def test_signs_are_plain_where_they_must_be(text: str, encoding: str, written: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors=IN_PLAIN_SIGNS)
    stream.write(text)
    stream.flush()
    assert raw.getvalue().decode(encoding) == written
