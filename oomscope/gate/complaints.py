"""What is wrong with a value, in words of YAML where pydantic speaks of Python's types, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from oomscope.config.problems import shown

AT = "at"
"""In pydantic's context of an error: the key inside of what was checked that is to blame."""

_LIST = "a list", "write [a, b], or a line with - for each"
_MAPPING = "a mapping", "write lines of key: value under it"
_WANTED: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str | None]]] = {
    "tuple_type": lambda _: _LIST,
    "dict_type": lambda _: _MAPPING,
    "model_type": lambda _: _MAPPING,
    "string_type": lambda _: ("text", None),
    "int_type": lambda _: ("a whole number", None),
    "int_from_float": lambda _: ("a whole number", None),
    "string_unicode": lambda _: ("text without halves of characters", None),
    "string_too_short": lambda _: ("text that is not empty", None),
    "string_too_long": lambda context: (f"text of at most {context['max_length']} characters", None),
    "string_pattern_mismatch": lambda _: ("one line of text without control characters", None),
    "literal_error": lambda context: (str(context["expected"]).replace("'", ""), None),
    "greater_than_equal": lambda context: (f"at least {context['ge']}", None),
    "less_than_equal": lambda context: (f"at most {context['le']}", None),
}
"""Kind of error to what is wanted and how to write it, by pydantic's context."""


def complaint(kind: str, name: str, value: object, context: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return what is wrong with the ``value`` of ``name`` and the remedy; None where pydantic has to say it.

    Args:
        kind: pydantic's type of the error.
        name: the key, as ``cases[0].name``; empty for the whole document.
        value: what was given.
        context: what pydantic knows of the error.
    """
    if kind == "literal_error" and name == "schema_version":
        newer = "read it with the oomscope that wrote it, or write it anew"
        return f"schema_version is {shown(value)}, and this oomscope reads {context['expected']}", newer
    if kind not in _WANTED:
        return None
    wanted, remedy = _WANTED[kind](context)
    if kind == "string_type" and isinstance(value, int | float):
        remedy = f'put it in quotes: "{shown(value)}"'
    said = f"{name} has no value" if value is None else f"{name} is {shown(value)}"
    return f"{said}, but must be {wanted}", remedy


def misplaced(key: str, said: str) -> PydanticCustomError:
    """Return an error, for a pydantic check of several keys together, that blames the line of ``key``."""
    return PydanticCustomError("misplaced", "{error}", {"error": said, AT: key})
