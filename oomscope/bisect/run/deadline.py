"""The deadline of a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


class OutOfTimeError(Exception):
    """The deadline passed. It ends the search, not the program."""


@dataclass(frozen=True)
class Deadline:
    """An instant after which nothing new is begun and what runs is ended."""

    at: float | None
    """On ``clock``; None for never."""
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline in ``seconds``; None for never."""
        return cls(None if seconds is None else clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds left; infinite without a deadline."""
        return float("inf") if self.at is None else self.at - self.clock()
