"""What a key accepts, in the words of messages and documentation; derived from the JSON Schema of its field."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from oomscope.config.keys import SECTIONS

Schema = Mapping[str, Any]


@cache
def key_schema(section: str, key: str) -> Schema:
    """Return the JSON Schema of one key, with no references left in it."""
    properties: Schema = SECTIONS[section].model_json_schema()["properties"]
    return dict(properties[key])


def accepts(section: str, key: str) -> str:
    """Return what the key accepts: ``a whole number of at least 1, or null``."""
    return _words(key_schema(section, key))


def is_nullable(section: str, key: str) -> bool:
    """Return whether the key accepts null."""
    return any(option.get("type") == "null" for option in key_schema(section, key).get("anyOf", ()))


def is_text(section: str, key: str) -> bool:
    """Return whether the key holds free text, so that ``2.10`` is a version and no number."""
    options = [option for option in _options(key_schema(section, key)) if option.get("type") != "null"]
    return all(option.get("type") == "string" and "enum" not in option and "const" not in option for option in options)


def names(section: str, key: str) -> list[str]:
    """Return the words of which the key accepts one; none where it accepts other values."""
    options = _options(key_schema(section, key))
    return [str(name) for option in options for name in option.get("enum", [option.get("const")]) if name is not None]


def most(section: str, key: str) -> float | None:
    """Return the largest number that the key accepts; None where it has no bound."""
    tops = [option["maximum"] for option in _options(key_schema(section, key)) if "maximum" in option]
    return max(tops, default=None)


def _options(schema: Schema) -> list[Schema]:
    return list(schema.get("anyOf", [schema]))


def _words(schema: Schema) -> str:
    choices = _choices(schema)
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _choices(schema: Schema) -> list[str]:
    """Return what may stand there, null last."""
    if schema.get("format") == "size":
        return ["a size such as 80GiB"]
    if schema.get("format") == "layout":
        return ["a layout such as Et*3|t*2L"]
    if "anyOf" in schema:
        words = [word for option in schema["anyOf"] for word in _choices(option)]
        return sorted(words, key=lambda word: word == "null")
    if "enum" in schema:
        return [str(value) for value in schema["enum"]]
    if "const" in schema:
        return [str(schema["const"])]
    return [_of_type(schema)]


def _of_type(schema: Schema) -> str:
    match schema["type"]:
        case "boolean":
            return "true or false"
        case "integer":
            return f"a whole number{_range(schema)}"
        case "number":
            return f"a number{_range(schema)}"
        case "array":
            return f"a list of {'/'.join(_choices(schema['items']))}"
        case "null":
            return "null"
        case _:
            return "text"


def _range(schema: Schema) -> str:
    """Return the bounds; those that only keep arithmetic within 64 bits are left out while a lower one says enough."""
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if high is not None and high >= 2**31 - 1:
        high = None
    if low is not None and low <= -(2**31):
        low = None
    if low is not None and high is not None:
        return f" from {low} to {high}"
    parts = [
        f"of at least {low}" if low is not None else "",
        f"above {above}" if above is not None else "",
        f"at most {high}" if high is not None else "",
        f"below {below}" if below is not None else "",
    ]
    words = " and ".join(part for part in parts if part)
    return f" {words}" if words else ""
