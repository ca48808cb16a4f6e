"""The progress of a search, as it is reported while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.results.sections import WalkedLine
from oomscope.probe.job import Progress


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """The plan of a search, reported before the first probe."""

    title: str
    """What is searched, in one line."""
    good: str
    bad: str
    candidates: int
    considered: int
    probes_at_most: int
    """Most probes with an answer, the two ends included; untestable ones come on top."""
    more_if: tuple[str, ...] = ()
    """Conditions under which the search takes more probes than that, each with how many where that is known."""
    notes: tuple[str, ...] = ()
    line: WalkedLine | None = None
    """The commits to be searched, where they are a line."""


@dataclass(frozen=True, kw_only=True)
class RunningProbe:
    """A probe that runs."""

    slot: int
    """Number of the slot, from 0."""
    label: str
    """The commit or keys that it measures."""
    is_asked: bool
    """Whether the search waits for it; others were begun because it is likely to ask for them."""
    progress: Progress | None = None
    """The last step forward, if any."""


class Reporter(Protocol):
    """Receives the search as it goes."""

    def planned(self, plan: SearchPlan) -> None:
        """Receive the plan: first of all, and once more after a good end had to be looked for."""
        return

    def probing(self, name: str, number: int) -> None:
        """Receive the beginning of probe ``number``, of the commit or keys called ``name``."""
        return

    def at_work(self, running: tuple[RunningProbe, ...]) -> None:
        """Receive what runs now, by slot, with its progress."""
        return

    def probed(self, record: ProbeRecord) -> None:
        """Receive an answer."""
        return


class SilentReporter(Reporter):
    """Default reporter: does nothing."""
