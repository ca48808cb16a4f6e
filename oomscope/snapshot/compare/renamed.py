"""Which module of one side is which module of the other, at one line that both sides have.

A module is known by its path. Where a refactoring renamed it (``blocks.*.ln1`` is ``transformer.h.*.ln_1`` now), a line
would seem to lose what one module holds and to gain what the other does, though nothing changed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

Name = TypeVar("Name")
Holding = TypeVar("Holding")


def renamed(before: Mapping[Name, Holding], after: Mapping[Name, Holding]) -> dict[Name, Name]:
    """Return the new name of each name of ``before`` that stands under another one in ``after``.

    Names on both sides stay as they are. Of the others those that hold the same are taken for one, in their order;
    then the last one of either side, if it is alone on both.

    Args:
        before: what each name holds on the first side.
        after: what each name holds on the second.
    """
    gone = {name: held for name, held in before.items() if name not in after}
    new = {name: held for name, held in after.items() if name not in before}
    pairs = dict(_alike(gone, new))
    left = [name for name in gone if name not in pairs]
    free = [name for name in new if name not in set(pairs.values())]
    if len(left) == len(free) == 1:
        pairs[left[0]] = free[0]
    return pairs


def _alike(gone: Mapping[Name, Holding], new: Mapping[Name, Holding]) -> Iterator[tuple[Name, Name]]:
    """Yield pairs of names that hold the same."""
    free = dict(new)
    for name, held in gone.items():
        match = next((other for other, there in free.items() if there == held), None)
        if match is not None:
            del free[match]
            yield name, match
