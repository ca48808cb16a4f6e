"""Messages of a recording: lines on standard error, and never an exception, which would end the training job."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TypeVar

from oomscope.errors import MachineUnfitError

T = TypeVar("T")


class Messages:
    """Prints lines: warnings only where ``quiet``; ``strict`` raises where recording cannot start."""

    def __init__(self, *, quiet: bool, strict: bool) -> None:
        self._quiet = quiet
        self._strict = strict

    def say(self, text: str) -> None:
        """Print an informational message, unless quiet."""
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more
                print(f"oomscope: {text}", file=sys.stderr, flush=True)

    def refuse(self, why: str) -> None:
        """Warn that nothing is recorded.

        Raises:
            MachineUnfitError: strictness was asked for.
        """
        if self._strict:
            raise MachineUnfitError(
                f"nothing can be recorded: {why}", where="oomscope.record", remedy="fix that, or leave strict=True out"
            )
        self.warn(f"nothing is recorded: {why}")

    def attempt(self, what: str, action: Callable[[], T]) -> T | None:
        """Return what ``action`` returns; where it fails say that ``what`` happened, and return None."""
        try:
            return action()
        except MachineUnfitError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing that recording does may end a training job
            self.warn(f"warning: {what}: {error or type(error).__name__}")
            return None
