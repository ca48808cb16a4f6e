"""What a check answers, and what all of them together mean for the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from oomscope.errors import ExitCode

SCHEMA_VERSION = 1


class State(StrEnum):
    """How a part stands, gravest first."""

    FAILS = "fails"
    """Nothing can be measured on this machine."""
    MISSING = "missing"
    """Something cannot be done without it; the rest can."""
    NOTE = "note"
    """It works, and something about it is worth knowing."""
    OK = "ok"
    """It works."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One part of the machine."""

    part: str
    state: State
    found: str
    """What there is, in one line."""
    disables: str = ""
    """What cannot be done for it, or what becomes of it; empty where nothing does."""
    remedy: str = ""
    """What to do, as an imperative."""
    values: dict[str, int | str | None] = field(default_factory=dict)
    """The same as numbers and names, for programs; sizes in bytes."""


@dataclass(frozen=True)
class Diagnosis:
    """All checks, in the order of reports."""

    checks: tuple[Check, ...]

    @property
    def fails(self) -> tuple[Check, ...]:
        """The parts for which nothing can be measured."""
        return tuple(check for check in self.checks if check.state is State.FAILS)

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that a probe can use here, the one that ``auto`` takes first."""
        if self.fails:
            return ()
        is_usable = {check.part: check.state in {State.OK, State.NOTE} for check in self.checks}
        cuda = ("cuda",) if is_usable.get("CUDA") and is_usable.get("NVML") else ()
        return (*cuda, *(("virtual",) if is_usable.get("virtual card") else ()))

    @property
    def exit_code(self) -> ExitCode:
        """``OK`` where a probe can run, on whatever backend."""
        return ExitCode.OK if self.backends else ExitCode.MACHINE_UNFIT

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope doctor --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "exit_code": int(self.exit_code),
            "backends": list(self.backends),
            "checks": [asdict(check) for check in self.checks],
        }
