"""What a recording says of itself, under the key ``oomscope`` of a snapshot: rank, card, ring, and why it was written.

PyTorch's schema has no place for it and its readers pass over keys that they do not know. A snapshot from elsewhere
has none; what is damaged counts as unknown and never fails.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

KEY: Final = "oomscope"
"""The top-level key of the snapshot's document."""

Reason = Literal["oom", "end", "exception", "signal", "interval", "asked"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A device when the snapshot was written, in bytes; from ``cudaMemGetInfo`` and torch's memory fraction."""

    index: int
    name: str = ""
    total_bytes: int = -1
    free_bytes: int = -1
    """Bytes of free device memory, whoever holds the rest."""
    memory_fraction: float = 1.0
    """Share of the total that the allocator may hold (``torch.cuda.set_per_process_memory_fraction``)."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The request that failed, where that is why the snapshot was written; bytes."""

    device: int
    requested_bytes: int
    free_bytes: int
    """Bytes that the driver could still give."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a snapshot comes from; -1 and the empty string stand for what is unknown."""

    reason: str = ""
    """Reason for the snapshot; in a recording by oomscope one of :data:`Reason`."""
    rank: int = -1
    world_size: int = -1
    iteration: int = -1
    """Number of complete steps."""
    host: str = ""
    pid: int = -1
    time: str = ""
    """Time in UTC, ISO 8601."""
    torch_version: str = ""
    max_entries: int = -1
    """The ring's size: a device with as many events may have lost older ones."""
    stacks: str = ""
    """Recorded stacks: ``python``, ``all`` (with C++ frames) or ``none``."""
    cards: tuple[Card, ...] = ()
    """The devices on which the process held memory."""
    refused: Refused | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        return asdict(self) | {"cards": list(map(asdict, self.cards))}


def provenance_of(value: object) -> Provenance | None:
    """Return the provenance in the value of :data:`KEY`; None where there is none."""
    if not isinstance(value, dict):
        return None
    cards = [_known(Card, card) for card in _list(value.get("cards"))]
    for card in cards:
        if not 0 < card.get("memory_fraction", 1.0) <= 1:
            del card["memory_fraction"]
    refused = _known(Refused, value.get("refused"))
    return Provenance(
        **_known(Provenance, value),
        cards=tuple(Card(**card) for card in cards if "index" in card),
        refused=Refused(**refused) if len(refused) == len(Refused.__annotations__) else None,
    )


def _known(kind: type, value: object) -> dict[str, Any]:
    """Return those plain fields of ``kind`` that ``value`` has with the right type."""
    types = {"int": int, "str": str, "float": float}
    given = value if isinstance(value, dict) else {}
    wanted = {name: types[text] for name, text in kind.__annotations__.items() if text in types}
    return {name: given[name] for name, expected in wanted.items() if type(given.get(name)) is expected}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
