"""What each process of a started program is told, in one environment variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

VARIABLE: Final = "OOMSCOPE_PROGRAM"


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """How a started program is measured; sizes in bytes."""

    folder: str
    """Absolute path of the folder that takes receipts and snapshots."""
    backend: Literal["virtual", "cuda"]
    card: str | None = None
    """Name of the virtual card."""
    iterations: int
    """The program is ended after so many steps of the optimizer that stepped first."""
    max_entries: int
    """Size of the ring of events, for each device."""
    max_frames: int = 40
    limit_bytes: int | None = None
    """On a real card: a smaller card to play, in all; None plays none. A virtual card is of that size itself."""
    world_size: int = 1
    """On a virtual card: the ranks of the world of which one is played; 1 leaves worlds to the program."""
    is_recorded: bool = True
    """Whether each allocation is recorded; else only the allocator's counters tell of the run."""
    most_backwards: int | None = None
    """The program is ended as well once it has run so many backward passes; None for any number."""

    def variables(self) -> dict[str, str]:
        """Return the variable by which :func:`from_environment` finds these settings."""
        return {VARIABLE: json.dumps(asdict(self), separators=(",", ":"))}


def from_environment(environment: Mapping[str, str]) -> ProgramSettings | None:
    """Return the settings that a probe left in ``environment``; None where it left none."""
    text = environment.get(VARIABLE)
    return ProgramSettings(**json.loads(text)) if text else None
