"""What a search took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a search took beside its answers."""

    wall_s: float
    """Seconds from its beginning to its last answer."""
    slots: int
    """Probes that could run at once."""
    begun: int
    """Runs that were begun, those included that were foreseen and not asked for; every rank is one."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)
