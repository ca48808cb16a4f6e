"""What was said of a storage on the card. Needs neither torch nor numpy, which a process of a program may lack."""

from __future__ import annotations

from typing import NamedTuple

from oomscope.snapshot.trace import Category


class Told(NamedTuple):
    """Somebody said what a storage is for."""

    address: int
    allocations: int
    """Blocks that the allocator had handed out by then."""
    category: Category
