"""What is wrong with a configuration, one :class:`Problem` at a place, and the error that carries them all.

Reading goes on after a problem where it can, so that one run names everything that has to be mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomscope.errors import ConfigError
from oomscope.printable import quoted

_SHORT = 8
"""Most numbers of a list that a message quotes."""
_DECIMAL_BITS = 10_000
"""Most bits of a number that is written in decimal; Python refuses from 4,300 digits on."""
LISTED = 10
"""Problems beyond the first that the error's one line spells out; all are in ``InvalidConfigError.problems``."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    message: str
    where: str
    """``file:line``, ``preset NAME:line``, ``override a.b=value`` or the source as a whole."""
    remedy: str | None = None
    rule: str | None = None
    """Id of the validation rule that was broken; None where the key or value itself is wrong."""

    def __str__(self) -> str:
        return str(ConfigError(self.message, where=self.where, remedy=self.remedy))


class InvalidConfigError(ConfigError):
    """A configuration with one or more problems; its text leads with the first and lists the others."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first, *others = problems
        super().__init__(first.message, where=first.where, remedy=first.remedy)
        self.problems = tuple(problems)
        self._others = others

    def __str__(self) -> str:
        text = super().__str__()
        if not self._others:
            return text
        listed = "; ".join(f"[{number}] {problem}" for number, problem in enumerate(self._others[:LISTED], start=2))
        unlisted = len(self._others) - LISTED
        rest = f"; and {unlisted} more" if unlisted > 0 else ""
        return f"{text} (and {len(self._others)} more: {listed}{rest})"


def shown(value: object) -> str:
    """Return a user's value as a message quotes it: text in quotes, on one line, cut where it is long."""
    if isinstance(value, str):
        text = '"' + quoted(value)[1:-1].replace('"', "'") + '"'
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int) and value.bit_length() > _DECIMAL_BITS:
        text = hex(value)
    elif isinstance(value, dict):
        text = "a mapping"
    elif isinstance(value, list | tuple):
        is_short = len(value) <= _SHORT and all(isinstance(item, int | float | bool | None) for item in value)
        text = f"[{', '.join(map(shown, value))}]" if is_short else "a list"
    else:
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"
