"""Take values out of untrusted dicts and lists, checking each one's type and naming the place of what is wrong.

Frames and stacks repeat by the thousand; a pickle shares them by identity, so each is checked and built once.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from oomscope.errors import SnapshotError
from oomscope.snapshot.trace import Frame, Stack

REMEDY: Final = "give a file made by torch.cuda.memory._dump_snapshot"
_KINDS: Final = {int: "integer", str: "text", list: "list", dict: "mapping"}
_SIGNED: Final = 2**63

Kind = TypeVar("Kind", int, str, list[Any], dict[str, Any])


class Reader:
    """Checked access to the plain values of one file.

    Args:
        where: the file's name, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}

    def error(self, place: str, expected: str) -> SnapshotError:
        """Return the error that says what ``place`` should have been."""
        return SnapshotError(f"{place} is no {expected}", where=self.where, remedy=REMEDY)

    def mapping(self, value: object, place: str) -> dict[str, Any]:
        """Return ``value`` if it is a dict."""
        return self._expect(value, dict, place)

    def text(self, value: object, place: str) -> str:
        """Return ``value`` if it is a string."""
        return self._expect(value, str, place)

    def sequence(self, value: object, place: str) -> list[Any]:
        """Return ``value`` if it is a list."""
        return self._expect(value, list, place)

    def number(self, fields: dict[str, Any], key: str, place: str, default: int | None = None) -> int:
        """Return the integer under ``key``, or ``default`` where the key is absent."""
        value = self._expect(fields.get(key, default), int, f"{place}.{key}")
        if not -_SIGNED <= value < 2 * _SIGNED:
            raise self.error(f"{place}.{key}", "64-bit integer")
        return value

    def size(self, fields: dict[str, Any], key: str, place: str, default: int | None = None) -> int:
        """Return the bytes under ``key``, or ``default`` where the key is absent."""
        value = self.number(fields, key, place, default)
        if not 0 <= value < _SIGNED:
            raise self.error(f"{place}.{key}", "number of bytes")
        return value

    def items(self, fields: dict[str, Any], key: str, place: str = "") -> list[tuple[str, Any]]:
        """Return the place and value of each item of the list under ``key`` (none where the key is absent)."""
        name = f"{place}.{key}" if place else key
        return [(f"{name}[{index}]", value) for index, value in enumerate(self.sequence(fields.get(key, []), name))]

    def pool(self, value: object, place: str) -> tuple[int, int]:
        """Return a pool id: a pair, a list after a trip through JSON, or one number in foreign dumps."""
        match value:
            case (int(first), int(second)):
                return (first, second)
            case int(number):
                return (0, number)
            case _:
                raise self.error(place, "pool id")

    def stack(self, value: object, place: str) -> Stack:
        """Return a list of frames as a stack; equal lists of shared frames give the same object."""
        frames = self.sequence(value, place)
        key = tuple(map(id, frames))
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = tuple([self._frame(frame, place) for frame in frames])
        return found

    def _frame(self, value: object, place: str) -> Frame:
        found = self._frames.get(id(value))
        if found is None:
            fields = self.mapping(value, f"a frame of {place}")
            found = self._frames[id(value)] = Frame(
                filename=self.text(fields.get("filename", ""), f"a filename of {place}"),
                line=self.number(fields, "line", f"a frame of {place}", default=0),
                name=self.text(fields.get("name", ""), f"a name of {place}"),
            )
        return found

    def _expect(self, value: object, kind: type[Kind], place: str) -> Kind:
        """Return ``value`` if it is of ``kind`` exactly (a bool is no integer)."""
        if type(value) is not kind:
            raise self.error(place, _KINDS[kind])
        return value
