"""One question to a probe: a job, the ranks that it is asked of, and what has to be laid out before it can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from oomscope.bisect.run.identity import Content
from oomscope.bisect.run.workplace import Workplace
from oomscope.bisect.search.measured import Untestable
from oomscope.probe.job import CheckoutTarget, ProbeJob


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to measure."""

    job: ProbeJob
    ranks: tuple[int, ...] = (0,)
    """The worst of these ranks counts."""
    content: Content = field(default_factory=Content)
    label: str = ""
    """What people are shown of it while it runs."""
    repeat: int = 0
    """Which measurement of the same thing this is; from 1 on no result of an earlier search is used."""
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
