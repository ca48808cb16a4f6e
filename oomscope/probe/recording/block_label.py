"""The label of a storage on the card. This module imports neither torch nor numpy: a program may lack numpy."""

from __future__ import annotations

from typing import NamedTuple

from oomscope.snapshot.trace import Category


class BlockLabel(NamedTuple):
    """What a storage is for, as the program or its hooks reported it."""

    address: int
    allocations: int
    """Blocks that the allocator had handed out by then."""
    category: Category
