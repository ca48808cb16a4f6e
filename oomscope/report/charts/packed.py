"""Columns of whole numbers, packed small enough to stand in a page: differences, as variable-length bytes, deflated.

The page's script unpacks them with the browser's own ``DecompressionStream``.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = 7
"""Of a number in each byte, the lowest first; the eighth bit says that more follow, as in LEB128."""


def packed(columns: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    """Return equally long columns as JSON values; numbers are below 2^53, which is what JavaScript counts to."""
    data = b"".join(_varints(_zigzag(np.diff(column, prepend=0))) for column in columns)
    return {
        "columns": len(columns),
        "rows": len(columns[0]) if columns else 0,
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
    }


def _zigzag(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 0, 1, 2, 3, … for 0, -1, 1, -2 and so on."""
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def _varints(values: NDArray[np.uint64]) -> bytes:
    """Return each number in as few bytes as hold it."""
    length = np.ones(len(values), dtype=np.int64)
    for more in range(1, 10):
        length += values >= np.uint64(1 << (BITS * more))
    end = np.cumsum(length)
    out = np.zeros(int(end[-1]) if len(end) else 0, dtype=np.uint8)
    for index in range(int(length.max(initial=0))):
        own = length > index
        piece = (values[own] >> np.uint64(BITS * index)) & np.uint64(127)
        marks = (length[own] > index + 1).astype(np.uint64) << np.uint64(BITS)
        out[(end - length)[own] + index] = piece | marks
    return out.tobytes()
