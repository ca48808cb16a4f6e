"""The leaves in which two documents differ (YAML or JSON, nested mappings), and documents in between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from oomscope.errors import InputError

_MISSING = object()
Leaves = dict[tuple[str, ...], Any]


def read_leaves(content: bytes, path: str) -> Leaves:
    """Return the leaves of a document by the keys that lead to each; a list is a leaf, and so is an empty mapping.

    Raises:
        InputError: it is neither YAML nor JSON with a mapping at the top, or a key is no text.
    """
    import yaml

    try:
        document = json.loads(content) if _is_json(path) else yaml.safe_load(content)
    except (ValueError, yaml.YAMLError) as error:  # a wrong encoding is a ValueError, too
        first = str(error).partition("\n")[0]
        raise InputError(f"is neither YAML nor JSON: {first}", where=path, remedy="name another --config") from None
    if not isinstance(document, Mapping):
        raise InputError("holds no mapping", where=path, remedy="name another --config")
    return dict(_leaves(document, (), path))


def differing(good: Leaves, bad: Leaves) -> tuple[tuple[str, ...], ...]:
    """Return the keys of the leaves that differ or that one document lacks, in the documents' order."""
    places = dict.fromkeys((*good, *bad))
    return tuple(place for place in places if good.get(place, _MISSING) != bad.get(place, _MISSING))


def mixed(good: Leaves, bad: Leaves, changed: set[tuple[str, ...]], path: str) -> bytes:
    """Return the good document with the leaves ``changed`` as in the bad one, in the format that ``path`` ends in.

    Raises:
        InputError: a leaf of one document lies where the other has a mapping, and the mixture has both.
    """
    import yaml

    document: dict[str, Any] = {}
    for place in dict.fromkeys((*good, *bad)):
        leaves = bad if place in changed else good
        if place in leaves:
            _put(document, place, leaves[place], path)
    if _is_json(path):
        return f"{json.dumps(document, indent=2)}\n".encode()
    return bytes(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, encoding="utf-8"))


def shown(value: Any) -> Any:
    """Return a leaf as JSON has it: what YAML has beyond that (dates, sets, bytes) as text."""
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, dict):
        return {str(key): shown(part) for key, part in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _is_json(path: str) -> bool:
    """Whether ``path`` names JSON: to YAML some of its numbers and letters mean something else."""
    return PurePosixPath(path).suffix == ".json"


def _leaves(document: Mapping[Any, Any], above: tuple[str, ...], path: str) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in document.items():
        if not isinstance(key, str):
            raise InputError(f"the key {key!r} is no text", where=path, remedy="name another --config")
        inside = isinstance(value, Mapping) and value
        found += _leaves(value, (*above, key), path) if inside else [((*above, key), value)]
    return found


def _put(document: dict[str, Any], place: tuple[str, ...], value: Any, path: str) -> None:
    *above, last = place
    for key in above:
        document = document.setdefault(key, {})
        if not isinstance(document, dict):
            raise InputError(f"{'.'.join(place)} lies inside a leaf", where=path, remedy="name another --config")
    if isinstance(document.get(last), dict) and document[last]:
        raise InputError(f"{'.'.join(place)} is a mapping too", where=path, remedy="name another --config")
    document[last] = value
