"""What was said of a storage on the card. This module imports neither torch nor numpy: a program may lack numpy."""

from __future__ import annotations

from typing import NamedTuple

from oomscope.snapshot.trace import Category


class Told(NamedTuple):
    """Somebody said what a storage is for."""

    address: int
    allocations: int
    """Blocks that the allocator had handed out by then."""
    category: Category
