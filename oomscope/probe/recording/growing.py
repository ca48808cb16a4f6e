"""Finds lists and dictionaries of a program that take up more tensors with each iteration, and what they are called.

A leak's bytes name the line that allocates them; what keeps them alive is most often a list that grows. What a program
gave to gc.freeze() is not found.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, Final, TypeAlias

import torch

from oomscope.snapshot.sites import Frame, is_user_code
from oomscope.units import MiB

Container: TypeAlias = "list[Any] | dict[Any, Any] | deque[Any]"
MIN_GROWTH: Final = MiB
"""Bytes an iteration, as :mod:`oomscope.snapshot.judge.leaks` has it, which imports numpy; a program may lack that."""
MOST_NAMED: Final = 3


class GrowingContainers:
    """Compares the containers of tensors at the beginning of one iteration with those at the beginning of the last.

    Args:
        allocated: returns the bytes that the program holds on the card.
    """

    def __init__(self, allocated: Callable[[], int]) -> None:
        self._allocated = allocated
        self._bytes = 0
        self._lengths: dict[int, int] = {}
        self.names: tuple[str, ...] = ()
        """What has grown in the last whole iteration, memory with it, and how many entries it has."""

    def iteration_begins(self) -> None:
        """Look at the containers, where memory has grown since the last iteration began."""
        before, self._bytes = self._bytes, self._allocated()
        if self._bytes - before < MIN_GROWTH:
            self._lengths, self.names = {}, ()
            return
        known = self._lengths
        found = {id(each): each for each in gc.get_objects() if _holds_tensors(each)}
        self._lengths = {key: len(each) for key, each in found.items()}
        grown = (each for key, each in found.items() if len(each) > known.get(key, len(each)))
        named = (f"{name} ({len(each)} entries)" for each in grown if (name := _name_of(each)))
        self.names = tuple(dict.fromkeys(named))[:MOST_NAMED]


def _holds_tensors(candidate: object) -> bool:
    """Whether the last entry of a list, dictionary or deque is a tensor on a card, or a sequence that begins so."""
    if type(candidate) not in {list, dict, deque} or not candidate:
        return False
    values: Any = candidate
    last = next(reversed(values.values())) if isinstance(candidate, dict) else values[-1]
    if isinstance(last, (tuple, list)) and last:
        last = last[0]
    return isinstance(last, torch.Tensor) and last.device.type != "cpu"


def _name_of(container: Container) -> str | None:
    """Return ``losses in train.py`` or ``Trainer.history``; None where no variable or attribute is ``container``."""
    for frame in _frames_of_the_program():
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in scope.items():
                if value is container:
                    return f"{name} in {frame.f_code.co_filename.rsplit('/', 1)[-1]}"
    for holder in gc.get_referrers(container):
        owners = gc.get_referrers(holder) if isinstance(holder, dict) else [holder]
        for owner in owners:
            attributes = getattr(owner, "__dict__", None)
            if isinstance(attributes, dict) and not type(owner).__module__.startswith(("torch.", "oomscope.")):
                for name, value in attributes.items():
                    if value is container:
                        return f"{owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__}.{name}"
    return None


def _frames_of_the_program() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_user_code(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)):
            yield frame
        frame = frame.f_back
