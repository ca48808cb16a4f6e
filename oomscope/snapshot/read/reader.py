"""Take values out of untrusted dicts and lists, checking each one's type and naming the place of what is wrong.

Texts, frames and stacks repeat by the million. Each is checked and stored once and named by a number from then on; a
pickle shares frames by identity, so a stack seen before is told by comparing pointers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import add
from typing import Any, Final, TypeVar

from oomscope.errors import SnapshotError
from oomscope.snapshot.read.tables import Column

REMEDY: Final = "give a file made by torch.cuda.memory._dump_snapshot"
AGAIN: Final = "record or copy the snapshot again"
REMEMBERED: Final = 1 << 20
"""Frames, and stacks, known by identity at a time: a file that shares none must not fill the memory with them."""
UNSIGNED_MINUS_ONE: Final = 2**64 - 1
"""Line in torch's snapshots of a frame that has none (``torch/csrc/profiler/python/combined_traceback.cpp``)."""
ADDRESS_SPACE: Final = 2**64 - 1
"""The highest end of memory that a column of addresses can hold."""
_KINDS: Final = {int: "integer", str: "text", list: "list", dict: "mapping"}

Kind = TypeVar("Kind", int, str, list[Any], dict[str, Any])


class Reader:
    """Checked access to the plain values of one file, and the tables of its texts, frames and stacks.

    A place in the file is a path such as ``segments[].address``. The document must stay alive while the reader is used,
    since identities stand for what was read.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.texts: dict[str, int] = {"": 0}
        """Number of each text; 0 is the empty one."""
        self.frames: dict[tuple[int, int, int], int] = {}
        """Number of each frame: text number of its file, line, text number of its function."""
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        """Number of each stack, a tuple of frame numbers; 0 is the empty one."""
        self._frame_at: dict[int, int] = {}
        self._stack_like: dict[tuple[int, int, int], tuple[list[Any], int]] = {}
        self._stack_at: dict[tuple[int, ...], int] = {}

    def error(self, place: str, expected: str) -> SnapshotError:
        """Return the error that ``place`` is not what was expected."""
        return SnapshotError(f"{place} is no {expected}", where=self.where, remedy=REMEDY)

    def mapping(self, value: object, place: str) -> dict[str, Any]:
        """Return ``value`` if it is a dict."""
        return self._expect(value, dict, place)

    def sequence(self, value: object, place: str) -> list[Any]:
        """Return ``value`` if it is a list."""
        return self._expect(value, list, place)

    def mappings(self, values: list[Any], place: str) -> list[dict[str, Any]]:
        """Return ``values`` if all of them are dicts."""
        if values and set(map(type, values)) != {dict}:
            raise self.error(place, "mapping")
        return values

    def integers(self, values: Sequence[Any], typecode: str, place: str) -> Column:
        """Return ``values`` as a column of :mod:`array`'s ``typecode``, refusing what is no integer or does not fit."""
        try:
            return array(typecode, values)
        except (TypeError, OverflowError):
            raise self.error(place, f"{8 * array(typecode).itemsize}-bit integer") from None

    def sizes(self, values: Sequence[Any], place: str) -> Column:
        """Return ``values`` as a column of bytes, refusing what is negative as well."""
        column = self.integers(values, "q", place)
        if column and min(column) < 0:
            raise self.error(place, "number of bytes")
        return column

    def ends(self, addresses: Column, sizes: Column, place: str) -> None:
        """Refuse memory that ends beyond :data:`ADDRESS_SPACE`."""
        if any(end > ADDRESS_SPACE for end in map(add, addresses, sizes)):
            raise self.error(place, "memory that a device could have")

    def text_numbers(self, values: Sequence[Any], place: str) -> Column:
        """Return the numbers of texts, refusing what is no text."""
        try:
            return array("i", map(self.texts.__getitem__, values))
        except (KeyError, TypeError):  # a text not seen before, or no text
            for value in values:
                self.texts.setdefault(self._expect(value, str, place), len(self.texts))
        return array("i", map(self.texts.__getitem__, values))

    def pool(self, value: object, place: str) -> tuple[int, int]:
        """Return a pool id: a pair, a list after a trip through JSON, or one number in foreign dumps."""
        match value:
            case (int(first), int(second)):
                pool = (first, second)
            case int(number):
                pool = (0, number)
            case _:
                raise self.error(place, "pool id")
        if not all(-(2**63) <= number < 2**63 for number in pool):
            raise self.error(place, "pool id")
        return pool

    def stack_numbers(self, lists: Iterable[Any], place: str) -> Column:
        """Return the numbers of stacks, given as lists of frames; nothing and the empty list are stack 0.

        Comparing two lists of shared frames compares pointers, which takes a tenth of hashing them. So a list is
        compared with the one before it (a free's request and completion have one stack), then with the last that had
        the same first, middle and last frame, and hashed only where neither is it.
        """
        like = self._stack_like
        numbers = array("i")
        append = numbers.append
        previous: object = []
        number = 0
        for frames in lists:
            if frames is previous or (frames == previous and type(frames) is list):
                append(number)
                continue
            previous, number = frames, 0
            if frames:
                self.sequence(frames, place)
                key = (id(frames[0]), id(frames[len(frames) >> 1]), id(frames[-1]))
                known = like.get(key)
                if known is None or not (known[0] is frames or known[0] == frames):
                    if len(like) >= REMEMBERED:
                        like.clear()
                    known = like[key] = (frames, self._stack(frames, place))
                number = known[1]
            append(number)
        return numbers

    def _stack(self, frames: list[Any], place: str) -> int:
        key = tuple(map(id, frames))
        number = self._stack_at.get(key)
        if number is None:
            if len(self._stack_at) >= REMEMBERED:
                self._stack_at.clear()
            stack = tuple([self._frame(frame, place) for frame in frames])
            number = self._stack_at[key] = self.stacks.setdefault(stack, len(self.stacks))
        return number

    def _frame(self, value: object, place: str) -> int:
        number = self._frame_at.get(id(value))
        if number is None:
            if len(self._frame_at) >= REMEMBERED:
                self._frame_at.clear()
            number = self._frame_at[id(value)] = self._new_frame(value, place)
        return number

    def _new_frame(self, value: object, place: str) -> int:
        fields = self.mapping(value, f"a frame of {place}")
        line = self._expect(fields.get("line", 0), int, f"a frame of {place}.line")
        if line == UNSIGNED_MINUS_ONE:
            line = -1
        if not -(2**63) <= line < 2**63:
            raise self.error(f"a frame of {place}.line", "64-bit integer")
        texts = [self._expect(fields.get(key, ""), str, f"a {key} of {place}") for key in ("filename", "name")]
        filename, name = (self.texts.setdefault(text, len(self.texts)) for text in texts)
        return self.frames.setdefault((filename, line, name), len(self.frames))

    def _expect(self, value: object, kind: type[Kind], place: str) -> Kind:
        """Return ``value`` if it is of ``kind`` exactly (a bool is no integer)."""
        if type(value) is not kind:
            raise self.error(place, _KINDS[kind])
        return value
