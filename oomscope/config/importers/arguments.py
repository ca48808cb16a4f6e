"""What somebody else's configuration gives, whatever it is written in: names with values, each with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ENVIRONMENT = "ENV:"
"""Leads the names of environment variables."""


@dataclass(frozen=True)
class Argument:
    """A name and its value."""

    name: str
    """As a path of plain names: ``num_layers``, ``model.num_layers``, ``ENV:CUBLAS_WORKSPACE_CONFIG``."""
    value: Any
    where: str
    """``args.yaml:12 (--num-layers)``, or the words of a command line."""


@dataclass
class Arguments:
    """All that was given."""

    source: str
    """How messages name it."""
    items: list[Argument] = field(default_factory=list)
    world_size: int | None = None
    """Ranks that the launcher starts, where it says so."""
    hints: set[str] = field(default_factory=set)
    """Dialects that the way of writing speaks for."""

    def add(self, name: str, value: Any, where: str) -> None:
        """Add an argument."""
        self.items.append(Argument(name, value, where))

    def value_of(self, name: str) -> Any:
        """Return the last value given to ``name``, or None."""
        return next((item.value for item in reversed(self.items) if item.name == name), None)
