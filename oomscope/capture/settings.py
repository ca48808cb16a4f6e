"""Settings of a recording, from arguments or environment variables; wrong values are refused before anything runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from oomscope.capture import names
from oomscope.errors import InputError

Stacks = Literal["python", "all", "none"]

VARIABLE: Final = "OOMSCOPE_RECORD"
"""Names the snapshot, and turns recording on; ``OOMSCOPE_RECORD_STACKS`` and the like set the field that they name."""

MAX_ENTRIES: Final = 1_000_000
"""Events in the ring: as many as torchtitan keeps with Python stacks, where 100,000 held two or three steps of a 16B
model (pytorch/torchtitan, pull request 3628)."""


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
    """Steps after each of which a snapshot is written as well."""
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
                f"{self.stacks!r} is not a choice of stacks", where="stacks", remedy="choose python, all or none"
            )
        for name in ("max_entries", "every"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise InputError(f"cannot be {number!r}", where=name, remedy="give a whole number from 1")

    def to_environment(self) -> dict[str, str]:
        """Return the variables by which :func:`from_environment` finds these settings."""
        values = {_variable(field.name): getattr(self, field.name) for field in fields(self)}
        return {name: "1" if value is True else str(value) for name, value in values.items() if value}


def from_environment(environment: Mapping[str, str]) -> Settings | None:
    """Return the settings that the variables give; None where :data:`VARIABLE` is unset or empty.

    Raises:
        InputError: a variable has a value that cannot be meant.
    """
    if not environment.get(VARIABLE):
        return None
    given: dict[str, Any] = {}
    for field in fields(Settings):
        text = environment.get(_variable(field.name))
        if text and field.type in ("int", "int | None"):
            given[field.name] = _number(text, _variable(field.name))
        elif text:
            given[field.name] = True if field.type == "bool" else text
    return Settings(**given)


def _variable(field: str) -> str:
    return VARIABLE if field == "path" else f"{VARIABLE}_{field.upper()}"


def _number(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", where=variable, remedy="give a whole number") from None
