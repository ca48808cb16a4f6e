"""What a recording keeps does not bring Python's collector forward."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from oomscope.probe.recording.collector import KeptObjects

OBJECTS = 5000
FREE_LISTS = 200
"""Objects that Python makes of others that it kept, and does not count."""


class Holder:
    """An object that the collector counts."""

    def __init__(self) -> None:
        self.other = None


@pytest.fixture(autouse=True)
def never_collects() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def grown(make: Callable[[], object]) -> int:
    """Return how many more objects are counted, with what ``make`` returns alive."""
    before = gc.get_count()[0]
    made = make()
    after = gc.get_count()[0]
    del made
    return after - before


def test_what_is_made_inside_is_not_counted() -> None:
    kept = KeptObjects()
    some = [Holder() for _ in range(2 * OBJECTS)]  # so that the count can go down

    def inside() -> list[Holder]:
        with kept:
            return [Holder() for _ in range(OBJECTS)]

    assert grown(lambda: [Holder() for _ in range(OBJECTS)]) >= OBJECTS
    assert abs(grown(inside)) < 10
    del some


def test_texts_of_nodes_are_not_counted_while_they_live_nor_when_they_die() -> None:
    kept = KeptObjects()
    some = [Holder() for _ in range(4 * OBJECTS)]

    def nodes() -> list[dict[str, list[str]]]:
        return [{"traceback_": kept.text_of_node(f"{number}")} for number in range(OBJECTS)]

    before = gc.get_count()[0]
    assert abs(grown(nodes)) < FREE_LISTS
    assert abs(gc.get_count()[0] - before) < FREE_LISTS
    assert kept.text_of_node("a place") == ["a place"]
    del some
