"""Keep a page small enough to be attached to an incident: it shows less of each table and picture until it fits.

What is left out is told on the page: rows as one that adds them up, events as columns that stand for several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oomscope.units import MiB

LARGEST: Final = MiB
"""Bytes of a page."""
SHARES: Final = tuple(2.0**-halvings for halvings in range(8))
"""Of the detail that a page has where there is room, in the order in which they are tried."""


def fitting(page: Callable[[float], str]) -> str:
    """Return ``page`` of the largest share of its detail with which it fits; of the smallest one, where none does."""
    text = ""
    for share in SHARES:
        text = page(share)
        if len(text.encode()) <= LARGEST:
            break
    return text
