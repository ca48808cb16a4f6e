"""How a search tells an live what it does; it works the same when nobody listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.results.sections import WalkedLine
from oomscope.probe.job import Progress


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What lies ahead, said before the first probe."""

    title: str
    """What is searched, in one line."""
    good: str
    bad: str
    candidates: int
    considered: int
    probes_at_most: int
    """Probes with an answer, the two ends included; untestable ones come on top."""
    more_if: tuple[str, ...] = ()
    """What makes the search take more probes than that, each with how many, as far as that is known."""
    notes: tuple[str, ...] = ()
    line: WalkedLine | None = None
    """The commits that lie ahead, where there is a line of them."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A probe that runs."""

    slot: int
    """From 0."""
    label: str
    """The commit or keys that it measures."""
    is_asked: bool
    """The search waits for it; the others were begun because it is likely to ask for them."""
    progress: Progress | None = None
    """The last step forward, if any."""


class Reporter(Protocol):
    """Receives the search as it goes."""

    def planned(self, plan: SearchPlan) -> None:
        """Take notice of the plan; comes first, and once more where a good end had to be looked for."""
        ...

    def probing(self, name: str, number: int) -> None:
        """Take notice that probe ``number`` begins, of the commit or keys called ``name``."""
        ...

    def progressed(self, progress: Progress) -> None:
        """Take notice of a step forward inside the running probe."""
        ...

    def at_work(self, running: tuple[Work, ...]) -> None:
        """Take notice of what runs now, by slot."""
        ...

    def probed(self, record: ProbeRecord) -> None:
        """Take notice of an answer."""
        ...


class SilentReporter:
    """The reporter of a search that nobody watches."""

    def planned(self, plan: SearchPlan) -> None:
        """Do nothing."""

    def probing(self, name: str, number: int) -> None:
        """Do nothing."""

    def progressed(self, progress: Progress) -> None:
        """Do nothing."""

    def at_work(self, running: tuple[Work, ...]) -> None:
        """Do nothing."""

    def probed(self, record: ProbeRecord) -> None:
        """Do nothing."""
