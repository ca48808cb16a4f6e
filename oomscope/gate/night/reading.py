"""Reads documents of the gate back into their dataclasses, with pydantic's strict rules for JSON.

A document may have been edited, or come from somebody who means harm. What is shown of it has to fit into a page, a
report and a table of any form, so numbers are bounded, times are times, and half characters are written out.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError

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


class _Adapters(dict[type, TypeAdapter[Any]]):
    """Validators by dataclass, each made once."""

    def __missing__(self, kind: type) -> TypeAdapter[Any]:
        self[kind] = made = TypeAdapter[Any](kind)
        return made


_ADAPTERS = _Adapters()


def read(kind: type[Instance], document: object) -> Instance:
    """Return ``document``, parsed JSON, as the dataclass ``kind``.

    Raises:
        ValueError: it is not one; in one line.
    """
    try:
        made: Instance = _ADAPTERS[kind].validate_json(json.dumps(bounded(document)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    return made


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"{text!r} is no path")
    return text


def _moment(text: str) -> str:
    when = dt.datetime.fromisoformat(text)
    return when.replace(tzinfo=when.tzinfo or dt.UTC).astimezone(dt.UTC).isoformat(timespec="seconds")


def _without_nulls(value: object) -> object:
    return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value


PathText = Annotated[str, AfterValidator(_path)]
"""A path; no file can be called by one with a null character."""
Moment = Annotated[str, AfterValidator(_moment)]
"""A time as nights have it: ISO 8601 in UTC, by the second."""
Numbers = Annotated[dict[str, int], BeforeValidator(_without_nulls)]
"""Numbers by name; what is null is left out."""


def bounded(value: Any) -> Any:
    """Return a document of any shape with numbers that are bounded and texts that any encoding holds.

    Raises:
        ValueError: a number is beyond all that is measured.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {bounded(name): bounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(bounded(one) for one in value)
    if isinstance(value, int | float) and not abs(value) <= MOST:
        raise ValueError("a number is beyond all that is measured")
    return value


def of_kind(made: Instance) -> Instance:
    """Return a dataclass that holds, and whose parts hold, what plain annotations say.

    Raises:
        ValueError: one does not.
    """
    for one in fields(made):
        value = getattr(made, one.name)
        if not _is_of(str(one.type), value):
            raise ValueError(f"{one.name} is no {one.type}")
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
