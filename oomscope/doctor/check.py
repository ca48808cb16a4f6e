"""A check of one part of the machine, and what all checks together mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from oomscope.document import Document
from oomscope.errors import ExitCode

SCHEMA_VERSION = 1


class State(StrEnum):
    """The state of a part, gravest first."""

    FAILS = "fails"
    """Nothing can be measured on this machine."""
    MISSING = "missing"
    """The features that need this part do not work; the rest does."""
    NOTE = "note"
    """It works, with a remark."""
    OK = "ok"
    """It works."""


@dataclass(frozen=True)
class Check:
    """One part of the machine."""

    part: str
    state: State
    found: str
    """What was found, in one line."""
    disables: str = ""
    """What the finding disables or causes."""
    remedy: str = ""
    """What to do, as an imperative."""
    values: dict[str, int | str | None] = field(default_factory=dict)
    """The findings as numbers and names, for programs; sizes in bytes."""


@dataclass(frozen=True)
class Diagnosis(Document):
    """All checks, in the order of reports."""

    also_written: ClassVar[tuple[str, ...]] = ("backends", "exit_code")

    checks: tuple[Check, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def fails(self) -> tuple[Check, ...]:
        """The parts because of which nothing can be measured."""
        return tuple(check for check in self.checks if check.state is State.FAILS)

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that a probe can use here, ``auto``'s choice first."""
        if self.fails:
            return ()
        works = {check.part: check.state in {State.OK, State.NOTE} for check in self.checks}
        cuda = ("cuda",) if works.get("CUDA") and works.get("NVML") else ()
        return (*cuda, *(("virtual",) if works.get("virtual card") else ()))

    @property
    def exit_code(self) -> ExitCode:
        """``OK`` where a probe can run on any backend."""
        return ExitCode.OK if self.backends else ExitCode.MACHINE_UNFIT
