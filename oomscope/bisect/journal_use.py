"""How a search uses its journal: plain values, part of its request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class JournalUse:
    """What a request says about journals; by default a search begins one."""

    search: int | None = None
    """The number of the search that is gone on with; None begins one."""
    only_recorded: bool = False
    """Measure nothing and write nothing: what is not in the journal stays unknown."""
    words: tuple[str, ...] = ()
    """The words after ``oomscope bisect``, by which the command line can go on; none for a program's search."""
