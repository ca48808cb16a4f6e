"""The checkout of one probe while it is made ready, and how commands of the user run there.

A command sees the variables that the probe will see, and runs in the checkout in a session of its own. Its processes
end with it, also where oomscope is killed.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from os import SEEK_END, defpath, pathsep
from pathlib import Path
from typing import BinaryIO

from oomscope.bisect.run.deadline import Deadline, OutOfTimeError
from oomscope.bisect.vcs.checkouts import spend
from oomscope.errors import TargetError
from oomscope.probe.machine.processes import Ended, start_family
from oomscope.probe.process.launch import StoppedError

_LOOK_S = 0.1
_TAIL_BYTES = 65_536

_SIGNALLED = 128
"""What ``sh`` adds to the number of a signal that ended a command, to make a status of it."""


class CommandError(TargetError):
    """A command of the user's failed in a checkout.

    Args:
        message: how, in one line.
        said: the end of its output.
    """

    def __init__(self, message: str, *, where: str, said: str = "") -> None:
        super().__init__(message, where=where)
        self.said = said


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """One checkout that is being made ready for a probe."""

    directory: Path
    """Its root."""
    environment: Mapping[str, str]
    """The variables that the probe will see."""
    deadline: Deadline
    """When the search ends."""
    stop: threading.Event
    """Set once the result is not needed any more."""

    def check(self) -> None:
        """Check that there is time left and the result is still needed.

        Raises:
            StoppedError: the result is not needed any more.
            OutOfTimeError: the deadline of the search has passed.
        """
        if self.stop.is_set():
            raise StoppedError
        if self.deadline.left_s <= 0:
            raise OutOfTimeError

    def run(self, command: str, *, name: str, timeout_s: float) -> None:
        """Run ``command`` by ``sh`` in the checkout.

        ``python`` and ``pip`` are those that oomscope runs under, unless the command names others, and what pip
        installs goes into the checkout.

        Args:
            command: for ``sh -c``.
            name: what people call it, such as ``--setup``.
            timeout_s: how long it may take, in seconds.

        Raises:
            CommandError: it failed, or took longer.
            StoppedError: the result is not needed any more.
            OutOfTimeError: the deadline of the search has passed.
        """
        self.check()
        spend(self.directory)
        with tempfile.TemporaryFile() as output:
            ended = self._ended(command, output, timeout_s)
            self.check()
            said = _tail(output)
        if ended is None:
            message = f"took more than {timeout_s:g} s; give a longer --setup-timeout"
            raise CommandError(message, where=name, said=said)
        if ended.status != 0:
            number = ended.signal or ended.status - _SIGNALLED
            how = f"signal {number}" if number > 0 else f"status {ended.status}"
            raise CommandError(f"failed ({how}): {_last_line(said)}", where=name, said=said)

    def _ended(self, command: str, output: BinaryIO, timeout_s: float) -> Ended | None:
        """Return how ``command`` ended; None where it took too long or was stopped."""
        end = time.monotonic() + min(timeout_s, self.deadline.left_s)
        family = start_family(
            ["sh", "-c", command], environment=self._variables(), cwd=self.directory, output=output.fileno()
        )
        by_itself = False
        try:
            while not by_itself and not self.stop.is_set() and time.monotonic() < end:
                by_itself = family.await_end(min(end, time.monotonic() + _LOOK_S))
        finally:
            ended = family.kill()
        return ended if by_itself else None

    def _variables(self) -> dict[str, str]:
        path = pathsep.join((str(Path(sys.executable).parent), self.environment.get("PATH", defpath)))
        pip = {"PIP_TARGET": str(self.directory), "PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_NO_COMPILE": "1"}
        return {**self.environment, **pip, "PATH": path}


def in_checkout(directory: str, command: str) -> str:
    """Return the shell command that runs ``command`` in ``directory`` as :meth:`Workplace.run` does."""
    return f"(cd {shlex.quote(directory)} && sh -c {shlex.quote(command)})"


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    return file.read().decode(errors="replace")


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
