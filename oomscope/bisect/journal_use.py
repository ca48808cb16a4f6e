"""How a search uses its journal: plain values, part of its request."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class JournalUse:
    """What a request says about journals; by default a search begins one."""

    search: int | None = None
    """The number of the search that is gone on with; None begins one."""
    words: tuple[str, ...] = ()
    """The words after ``oomscope bisect``, by which the command line can go on; none for a program's search."""


class InterruptedSearch(KeyboardInterrupt):
    """Ctrl-C in a search that can be gone on with.

    Args:
        search: its number.
        state: where its journal is kept; None for the default place.
    """

    def __init__(self, search: int, state: Path | None) -> None:
        super().__init__("interrupted")
        place = "" if state is None else f" --state {shlex.quote(str(state))}"
        self.remedy = f"nothing that was measured is lost; go on with oomscope bisect resume {search}{place}"
