"""Values of a night that is read back: each is of the kind that it should be, or the document is not whole.

A document may have been edited, or be of somebody who means harm. What is shown of it has to fit into a page, a report
and a table of any form, so numbers are bounded, times are times, and half characters are written out.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar

from oomscope.gate.suite.metrics import MOST

Instance = TypeVar("Instance", bound=Any)
_PLAIN: dict[str, set[type]] = {
    "int": {int},
    "float": {int, float},
    "str": {str},
    "bool": {bool},
    "None": {NoneType},
}
"""By annotation, of what types a value may be."""


def text(value: object) -> str:
    """Return a text that any encoding holds; TypeError where it is none."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    raise TypeError(f"{value!r} is no text")


def texts(document: dict[str, Any]) -> dict[str, str]:
    """Return a mapping of texts."""
    return {name: text(value) for name, value in document.items()}


def place(value: object) -> str:
    """Return a path; ValueError where no file can be called so."""
    path = text(value)
    if "\0" in path:
        raise ValueError(f"{path!r} is no path")
    return path


def moment(value: object) -> str:
    """Return a time as nights have it: ISO 8601 in UTC, by the second."""
    when = dt.datetime.fromisoformat(text(value))
    return when.replace(tzinfo=when.tzinfo or dt.UTC).astimezone(dt.UTC).isoformat(timespec="seconds")


def number(value: object) -> int | None:
    """Return a whole number that is no larger than any that is measured, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a value is no whole number")
    if abs(value) > MOST:
        raise ValueError("a number is beyond all that is measured")
    return value


def whole(value: object) -> int:
    """Return a number that has to be there."""
    found = number(value)
    if found is None:
        raise TypeError("a number is missing")
    return found


def numbers(document: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of a mapping; what is null is left out."""
    read = {text(name): number(value) for name, value in document.items()}
    return {name: value for name, value in read.items() if value is not None}


def flag(value: object) -> bool:
    """Return true or false; TypeError where it is neither."""
    if isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is neither true nor false")


def rows(value: object) -> list[Any]:
    """Return a list that has something in it."""
    if isinstance(value, list) and value:
        return value
    raise TypeError("there is no list of any length")


def of_kind(made: Instance) -> Instance:
    """Return a dataclass that holds, and whose parts hold, what plain annotations say; TypeError where one does not."""
    for one in fields(made):
        value = getattr(made, one.name)
        if not _is_of(str(one.type), value):
            raise TypeError(f"{one.name} is no {one.type}")
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                of_kind(part)
    return made


def _is_of(annotation: str, value: object) -> bool:
    """Whether ``value`` is what a plain annotation, or a mapping to such, says; of others nothing is known."""
    if annotation.startswith("dict[str, "):
        kind = annotation.removeprefix("dict[str, ").removesuffix("]")
        return isinstance(value, dict) and all(_is_of(kind, one) for one in value.values())
    parts = annotation.split(" | ")
    return any(part not in _PLAIN for part in parts) or any(type(value) in _PLAIN[part] for part in parts)


def bounded(value: Any) -> Any:
    """Return a document of any shape with numbers that are bounded and texts that any encoding holds."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(name): bounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(bounded(one) for one in value)
    if isinstance(value, float):
        if not abs(value) <= MOST:
            raise ValueError("a number is beyond all that is measured")
        return value
    return value if isinstance(value, bool) else number(value)
