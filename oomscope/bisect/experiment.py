"""One question to a probe: a job, the ranks that it is asked of, and what has to be laid out before it can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oomscope.bisect.identity import Content
from oomscope.probe.job import ProbeJob


@dataclass(frozen=True)
class Untestable:
    """Why there is nothing to probe."""

    reason: str
    """One line."""


def _nothing() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to measure."""

    job: ProbeJob
    ranks: tuple[int, ...] = (0,)
    """The worst of these ranks speaks for all."""
    content: Content = field(default_factory=Content)
    lay_out: Callable[[], tuple[str, ...]] = _nothing
    """Called before a probe is really run: puts the files under test where the job looks for them and returns what
    is missing there, one line each.

    Raises:
        GitError: they cannot be laid out.
    """
