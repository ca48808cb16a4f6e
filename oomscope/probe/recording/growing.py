"""Finds lists and dictionaries of a program that take up more tensors with each iteration, and what they are called.

A leak's bytes name the line that allocates them; what keeps them alive is most often a list that grows. This runs in a
program: only plain containers and tensors are looked at, whose methods are not the program's own, and local variables
only where that keeps nothing alive (Python 3.13 on; before, a frame stores what is read). What the program gave to
gc.freeze() is not found.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import FrameType, ModuleType
from typing import Any, Final, TypeAlias

import torch

from oomscope.snapshot.sites import Frame, is_user_code
from oomscope.units import MiB

Container: TypeAlias = "list[Any] | dict[Any, Any] | deque[Any]"
MIN_GROWTH: Final = MiB
"""Bytes an iteration, as in :mod:`oomscope.snapshot.judge.leaks`, which a program without numpy cannot import."""
MOST_NAMED: Final = 3
_MOST_LOOKED_AT: Final = 10
_CONTAINERS: Final = {list, dict, deque}
_TENSORS: Final = {torch.Tensor, torch.nn.Parameter}
_LOCALS_ARE_LIVE: Final = sys.version_info >= (3, 13)  # PEP 667


class GrowingContainers:
    """Compares the containers of tensors at the beginnings of iterations.

    Args:
        allocated: returns the bytes that the program holds on the card.
    """

    def __init__(self, allocated: Callable[[], int]) -> None:
        self._allocated = allocated
        self._bytes = 0
        self._lengths: dict[int, int] = {}
        self._grew: dict[int, int] = {}
        self.names: tuple[str, ...] = ()
        """Containers that grew in each of the last two iterations, memory with them, and their numbers of entries."""

    def iteration_begins(self) -> None:
        """Look at the containers, where memory has grown since the last iteration began."""
        self.names = ()
        before, self._bytes = self._bytes, self._allocated()
        if self._bytes - before < MIN_GROWTH:
            self._lengths, self._grew = {}, {}
            return
        filled = [each for each in gc.get_objects() if type(each) in _CONTAINERS and each]  # few of very many objects
        found = {id(each): each for each in filled if _holds_tensors(each)}
        lengths = {key: len(each) for key, each in found.items()}
        grew = {key: self._grew.get(key, 0) + 1 for key in found if lengths[key] > self._lengths.get(key, 0)}
        self._lengths, self._grew = lengths, grew
        longest = sorted((key for key in found if grew.get(key, 0) > 1), key=lambda key: -lengths[key])
        with contextlib.suppress(Exception):  # other threads change what is looked at
            names = (name for key in longest[:_MOST_LOOKED_AT] if (name := _name_of(found[key])))
            self.names = tuple(dict.fromkeys(islice(names, MOST_NAMED)))


def _holds_tensors(container: Container) -> bool:
    """Whether the last entry of a container is a tensor on a card, or a sequence that begins so."""
    values: Any = container
    try:
        last = next(reversed(values.values())) if type(container) is dict else values[-1]
        if type(last) in {tuple, list}:
            last = last[0]
    except (IndexError, StopIteration, RuntimeError):  # it is empty, or another thread changes it
        return False
    return type(last) in _TENSORS and last.device.type != "cpu"


def _name_of(container: Container) -> str | None:
    """Return ``losses in train.py (3 entries)`` or ``Trainer.history …``; None where no such name holds it."""
    size = f"({len(container)} entries)"
    for frame in _frames_of_the_program():
        for scope in (frame.f_globals, *((frame.f_locals,) if _LOCALS_ARE_LIVE else ())):
            if name := _key_of(container, scope):
                return f"{name} in {frame.f_code.co_filename.rsplit('/', 1)[-1]} {size}"
    holders = [each for each in gc.get_referrers(container) if type(each) is not FrameType]
    for owner in _owners(holders):
        with contextlib.suppress(AttributeError):  # it has no such attribute
            if name := _key_of(container, object.__getattribute__(owner, "__dict__")):
                return f"{owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__}.{name} {size}"
    return None


def _owners(holders: Iterable[object]) -> Iterator[object]:
    """Yield the objects of the program that refer to a container, by themselves or by their dictionary."""
    for holder in holders:
        for owner in gc.get_referrers(holder) if type(holder) is dict else (holder,):
            if not str(type(owner).__module__).startswith(("torch.", "oomscope.")):
                yield owner


def _key_of(container: Container, scope: Mapping[str, Any]) -> str | None:
    return next((name for name, value in list(scope.items()) if value is container), None)


def _frames_of_the_program() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_user_code(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)):
            yield frame
        frame = frame.f_back
