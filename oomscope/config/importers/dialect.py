"""What a dialect is: a table of names, names that cost no memory, and what it computes from several together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from oomscope.config.importers import environment
from oomscope.config.importers.arguments import ENVIRONMENT
from oomscope.config.importers.draft import Draft
from oomscope.config.importers.rows import Row

_CLOSE = 0.85
"""How like a row's name a mistyped one is, by difflib's ratio."""


@dataclass(frozen=True)
class Dialect:
    """One way of writing a training job's configuration."""

    name: str
    title: str
    table: Mapping[str, Row]
    without_memory: str
    """Names that cost no memory, separated by white space; ``*`` stands for any characters."""
    finish: Callable[[Draft], None]
    """Fills in the dialect's defaults, and what follows from several names together."""

    def costs_no_memory(self, name: str) -> bool:
        """Whether ``name`` has nothing to do with a GPU's memory."""
        names = self.without_memory if not name.startswith(ENVIRONMENT) else environment.WITHOUT_MEMORY
        return _pattern(names).fullmatch(name) is not None

    def row_of(self, name: str) -> Row | None:
        """Return the row of ``name``, also where it is an environment variable."""
        return self.table.get(name) or environment.TABLE.get(name)

    def nearest(self, name: str) -> str | None:
        """Return the name of a row that the unknown ``name`` may have been meant for."""
        close = get_close_matches(name, [*self.table, *environment.TABLE], n=1, cutoff=_CLOSE)
        return close[0] if close else None


@cache
def _pattern(names: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names.split()))
