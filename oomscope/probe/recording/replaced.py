"""Puts other functions in the place of torch's for the length of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_ABSENT: Final = object()


@contextmanager
def replaced(places: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes (owner, name, value) while the block runs; afterwards all stand as they stood before.

    What a class inherits is looked up in its bases again.
    """
    before: list[tuple[Any, str, Any]] = []
    for owner, name, value in places:
        before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
