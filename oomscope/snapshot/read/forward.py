"""Read ``forward_frames``: each distinct value is parsed once and named by the numbers of its stack and its module."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from oomscope.snapshot.forward_frames import frames_in, number_in
from oomscope.snapshot.read.reader import Reader
from oomscope.snapshot.read.tables import Column

MAX_FRAMES: Final = 1000
"""Frames of one traceback that are read, innermost last; more are no program's."""
_NOTHING: Final = (0, 0)


class ForwardFrames:
    """The forward stacks of one file.

    Args:
        reader: stores texts, frames and stacks.
        places: what the file says under ``PLACES_KEY``; what is not well formed there counts as unknown.
    """

    def __init__(self, reader: Reader, places: object) -> None:
        self._reader = reader
        self._places = places if isinstance(places, list) else []
        self._known: dict[tuple[object, ...], tuple[int, int]] = {}

    def columns(self, values: Sequence[Any]) -> tuple[Column, Column]:
        """Return the numbers of stacks and of modules' names for each event's ``forward_frames``.

        What is no list of texts says nothing: the field is young, and no total rests on it.
        """
        numbers = [self._numbers(value) if value else _NOTHING for value in values]
        return array("i", [stack for stack, _ in numbers]), array("i", [module for _, module in numbers])

    def _numbers(self, value: Any) -> tuple[int, int]:
        if type(value) is not list or len(value) > MAX_FRAMES or set(map(type, value)) != {str}:
            return _NOTHING
        key = tuple(value)
        found = self._known.get(key)
        if found is None:
            number = number_in(value[0]) if len(value) == 1 else None
            found = self._known[key] = (self._stack(frames_in(value)), 0) if number is None else self._place(number)
        return found

    def _place(self, number: int) -> tuple[int, int]:
        match self._places[number : number + 1]:
            case [[str(module), list(rows)]] if len(rows) <= MAX_FRAMES:
                frames = [row for row in rows if _is_frame(row)]
                return self._stack([tuple(row) for row in frames]), self._text(module)
        return _NOTHING

    def _stack(self, frames: list[tuple[Any, ...]]) -> int:
        texts, stacks = self._reader.frames, self._reader.stacks
        rows = [(self._text(file), line, self._text(name)) for file, line, name in frames]
        stack = tuple(texts.setdefault(row, len(texts)) for row in rows)
        return stacks.setdefault(stack, len(stacks))

    def _text(self, text: str) -> int:
        texts = self._reader.texts
        return texts.setdefault(text, len(texts))


def _is_frame(row: object) -> bool:
    match row:
        case [str(), int(line), str()] if type(line) is int and 0 <= line < 2**31:
            return True
    return False
