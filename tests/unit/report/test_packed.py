"""Packed columns are read back number by number, by the rules that the page's script follows."""

from __future__ import annotations

import base64
import zlib
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.charts.html import packed

NUMBERS = st.integers(-(2**52), 2**52)


@given(st.integers(0, 30).flatmap(lambda rows: st.lists(st.lists(NUMBERS, min_size=rows, max_size=rows), min_size=1)))
def test_every_number_comes_back(columns):
    document = packed([np.array(column, dtype=np.int64) for column in columns])
    assert document["rows"] == len(columns[0])
    assert document["columns"] == len(columns)
    numbers = iter(unpacked(document["data"]))
    rows = document["rows"]
    assert [list(accumulate(next(numbers) for _ in range(rows))) for _ in columns] == columns


def unpacked(data: str):
    """Yield the differences."""
    value = shift = 0
    for byte in zlib.decompress(base64.b64decode(data)):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield -(value + 1) // 2 if value % 2 else value // 2
            value = shift = 0


def test_what_repeats_is_small():
    column = np.tile(np.array([1, 2**30, 5, 2**40]), 25_000)
    assert len(packed([column, column])["data"]) < 4_000
