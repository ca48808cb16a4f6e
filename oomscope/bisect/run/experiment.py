"""One question to a probe (what to measure, of which ranks), and the checkout of the probe while it is prepared.

A command of the user's sees the variables that the probe will see, and runs in the checkout in a session of its own.
Its processes end with it, also where oomscope is killed.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import defpath, pathsep
from pathlib import Path

from oomscope.bisect.run.identity import Content
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.vcs.checkouts import retire
from oomscope.errors import TargetError
from oomscope.files import tail_of
from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.machine.processes import start_process_tree
from oomscope.probe.process.launch import StoppedError

_LOOK_S = 0.1
_TAIL_BYTES = 65_536

_SIGNALLED = 128
"""Number that ``sh`` adds to that of a signal that ended a command, for the exit status."""


class OutOfTimeError(Exception):
    """The deadline passed. It ends the search, not the program."""


@dataclass(frozen=True)
class Deadline:
    """An instant after which nothing new begins and what runs is ended."""

    at: float | None
    """Instant on ``clock``; None for never."""
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline in ``seconds``; None for never."""
        return cls(None if seconds is None else clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds left; infinite without a deadline."""
        return float("inf") if self.at is None else self.at - self.clock()


class CommandError(TargetError):
    """A command of the user's failed in a checkout."""

    def __init__(self, message: str, *, where: str, output: str = "") -> None:
        super().__init__(message, where=where)
        self.output = output


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """One checkout that is being made ready for a probe."""

    directory: Path
    """Root of the checkout."""
    environment: Mapping[str, str]
    """The variables that the probe will see."""
    deadline: Deadline
    """When the search ends."""
    stop: threading.Event
    """Event that is set once the result is not needed any more."""

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
        retire(self.directory)
        end = time.monotonic() + min(timeout_s, self.deadline.left_s)
        has_ended = False
        with tempfile.TemporaryFile() as output:
            family = start_process_tree(
                ["sh", "-c", command], environment=self._variables(), cwd=self.directory, output=output.fileno()
            )
            try:
                while not has_ended and not self.stop.is_set() and time.monotonic() < end:
                    has_ended = family.await_end(min(end, time.monotonic() + _LOOK_S))
            finally:
                ended = family.kill()
            self.check()
            text = tail_of(output.fileno(), most_bytes=_TAIL_BYTES)
        if not has_ended:
            message = f"took more than {timeout_s:g} s; give a longer --setup-timeout"
            raise CommandError(message, where=name, output=text)
        if ended.status != 0:
            number = ended.signal or ended.status - _SIGNALLED
            how = f"signal {number}" if number > 0 else f"status {ended.status}"
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            raise CommandError(f"failed ({how}): {lines[-1] if lines else 'no output'}", where=name, output=text)

    def _variables(self) -> dict[str, str]:
        path = pathsep.join((str(Path(sys.executable).parent), self.environment.get("PATH", defpath)))
        pip = {"PIP_TARGET": str(self.directory), "PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_NO_COMPILE": "1"}
        return {**self.environment, **pip, "PATH": path}


def in_checkout(directory: str, command: str) -> str:
    """Return the shell command that runs ``command`` in ``directory`` as :meth:`Workplace.run` does.

    What pip installs goes into the directory there too, not into the environment of whoever runs it.
    """
    return f'(cd {shlex.quote(directory)} && PIP_TARGET="$PWD" PIP_USER=0 sh -c {shlex.quote(command)})'


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to measure."""

    job: ProbeJob
    ranks: tuple[int, ...] = (0,)
    """Ranks to measure; the worst of them counts."""
    content: Content = field(default_factory=Content)
    label: str = ""
    """Name shown to people while it runs."""
    repeat: int = 0
    """Number of the measurement of the same thing; from 1 on no result of an earlier search is used."""
    lay_out: Callable[[Path], tuple[str, ...]] = lambda _place: ()
    """Called before a probe really runs, with the directory of the job's checkout: puts the files under test there
    and returns what is missing, one line each. Several threads may call it, each with a directory of its own.

    Raises:
        GitError: they cannot be laid out.
        TargetError: what they need cannot be installed.
    """
    prepare: Callable[[Workplace], None] = lambda _place: None
    """Called after :attr:`lay_out` with the same directory: repairs and builds there.

    Raises:
        GitError, TargetError: it cannot be measured.
        StoppedError, OutOfTimeError: it was ended.
    """

    def repeated(self, repeat: int) -> Experiment:
        """Return the measurement of the same thing with the number ``repeat``, from 0."""
        return replace(self, repeat=repeat)

    def edited(self, name: str, edit: Callable[[Path], None]) -> Experiment | Untestable:
        """Return the same experiment with its files changed once they are laid out.

        Args:
            name: tells this edit from all others: part of the key of a result.
            edit: changes the files in the directory that it is given; may raise GitError.
        """
        if not isinstance(self.job.target, CheckoutTarget):
            return Untestable("there is no checkout whose files could be changed")

        def lay_out(place: Path) -> tuple[str, ...]:
            missing = self.lay_out(place)
            edit(place)
            return missing

        return replace(self, content=replace(self.content, tree=f"{self.content.tree}+{name}"), lay_out=lay_out)
