"""The one way in which results become JSON: all fields of a dataclass, and the properties that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar


class Document:
    """A dataclass that is written as JSON."""

    also_written: ClassVar[tuple[str, ...]] = ()
    """Properties that are written beside the fields."""
    not_written: ClassVar[tuple[str, ...]] = ()
    """Fields that are left out."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return _document_of(self)


def json_of(value: Any) -> Any:
    """Return ``value`` as JSON values; what writes itself does."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return _document_of(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: json_of(each) for name, each in value.items()}
    return [json_of(each) for each in value] if isinstance(value, list | tuple) else value


def _document_of(value: Any) -> dict[str, Any]:
    left_out = getattr(value, "not_written", ())
    names = (each.name for each in fields(value) if each.name not in left_out)
    return {name: json_of(getattr(value, name)) for name in (*names, *getattr(value, "also_written", ()))}
