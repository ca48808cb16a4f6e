"""What a recording is told, as arguments or as environment variables; wrong values are refused before anything runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from oomscope.capture import names
from oomscope.errors import InputError

Stacks = Literal["python", "all", "none"]

VARIABLE: Final = "OOMSCOPE_RECORD"
"""Names the snapshot, and turns recording on; the others below say how."""
STACKS_VARIABLE: Final = "OOMSCOPE_RECORD_STACKS"
MAX_ENTRIES_VARIABLE: Final = "OOMSCOPE_RECORD_MAX_ENTRIES"
EVERY_VARIABLE: Final = "OOMSCOPE_RECORD_EVERY"
FORCE_VARIABLE: Final = "OOMSCOPE_RECORD_FORCE"
QUIET_VARIABLE: Final = "OOMSCOPE_RECORD_QUIET"
WATCH_VARIABLE: Final = "OOMSCOPE_RECORD_WATCH"

MAX_ENTRIES: Final = 1_000_000
"""As many as torchtitan keeps with Python stacks, where 100,000 held two or three steps of a 16B model
(pytorch/torchtitan, pull request 3628)."""


class Ring(NamedTuple):
    """What the allocator was told to keep."""

    max_entries: int
    stacks: Stacks


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to record.

    Raises:
        InputError: a value that cannot be meant.
    """

    path: str = "snap-{rank}.pickle"
    """Template of the snapshot's name (:mod:`oomscope.capture.names`); ``.gz`` and ``.zst`` compress."""
    max_entries: int = MAX_ENTRIES
    """Size of the ring of events, for each device."""
    stacks: Stacks = "python"
    every: int | None = None
    """Write a snapshot after each so many steps as well."""
    force: bool = False
    """Replace files that are there, instead of taking the next free name."""
    strict: bool = False
    """Raise where recording cannot start, instead of saying so."""
    quiet: bool = False
    """Print warnings only."""
    watch: bool = False
    """Report live memory that keeps growing from step to step."""

    def __post_init__(self) -> None:
        names.check(self.path)
        if self.path.endswith(".zst") and importlib.util.find_spec("zstandard") is None:
            raise InputError("no package zstandard", where=self.path, remedy="install it, or choose a name in .gz")
        if self.stacks not in get_args(Stacks):
            raise InputError(
                f"{self.stacks!r} does not name stacks", where="stacks", remedy="choose python, all or none"
            )
        _at_least_one(self.max_entries, "max_entries")
        if self.every is not None:
            _at_least_one(self.every, "every")

    def to_environment(self) -> dict[str, str]:
        """Return the variables by which :func:`from_environment` finds these settings."""
        chosen = {
            VARIABLE: self.path,
            STACKS_VARIABLE: self.stacks,
            MAX_ENTRIES_VARIABLE: str(self.max_entries),
            EVERY_VARIABLE: "" if self.every is None else str(self.every),
            FORCE_VARIABLE: "1" if self.force else "",
            QUIET_VARIABLE: "1" if self.quiet else "",
            WATCH_VARIABLE: "1" if self.watch else "",
        }
        return {name: text for name, text in chosen.items() if text}


def from_environment(environment: Mapping[str, str]) -> Settings | None:
    """Return the settings that the variables give; None where :data:`VARIABLE` is unset or empty.

    Raises:
        InputError: a variable has a value that cannot be meant.
    """
    path = environment.get(VARIABLE)
    if not path:
        return None
    every = environment.get(EVERY_VARIABLE)
    return Settings(
        path=path,
        max_entries=_number(environment.get(MAX_ENTRIES_VARIABLE) or str(MAX_ENTRIES), MAX_ENTRIES_VARIABLE),
        stacks=environment.get(STACKS_VARIABLE) or "python",  # type: ignore[arg-type] # checked by Settings
        every=_number(every, EVERY_VARIABLE) if every else None,
        force=bool(environment.get(FORCE_VARIABLE)),
        quiet=bool(environment.get(QUIET_VARIABLE)),
        watch=bool(environment.get(WATCH_VARIABLE)),
    )


def _number(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", where=variable, remedy="give a whole number") from None


def _at_least_one(number: int, name: str) -> None:
    if type(number) is not int:
        raise InputError(f"{number!r} is not a whole number", where=name, remedy="give a whole number from 1")
    if number < 1:
        raise InputError(f"{number!r} is too few", where=name, remedy="give a whole number from 1")
