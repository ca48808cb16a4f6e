"""Looks for a good end where none was given: back along first parents in growing steps of days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from oomscope.bisect.lines.probed_line import Known
from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import Role
from oomscope.bisect.run.deadline import OutOfTimeError
from oomscope.bisect.run.experiment import Experiment, Untestable
from oomscope.bisect.run.prober import Prober, Question
from oomscope.bisect.run.weighing import Weighing
from oomscope.bisect.search.line import Answer
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import Repository

DAYS = (1, 3, 7, 14, 30, 60)
"""How many days before the bad end, one after the other."""


@dataclass(frozen=True, kw_only=True)
class GoodEnd:
    """What came of looking."""

    good: Commit | None
    """The youngest commit tried that is good."""
    oldest: Commit
    """How far back the search went."""
    known: Known
    """What was answered on the way, the bad end included, by hash."""
    outcome: Literal["no_culprit", "ends_invalid", "inconclusive"] = "ends_invalid"
    """What it means that there is no ``good``."""
    reason: str = ""


@dataclass
class GoodEndSearch:
    """A search for a good end.

    Args:
        repository: where.
        bad: the bad end.
        subject: what of each commit is measured.
        prober: who answers.
        noise: how to meet answers that may be wrong; None leaves it to the backend.
    """

    repository: Repository
    bad: Commit
    subject: Subject
    prober: Prober
    noise: Noise | None = None
    _weighing: Weighing = field(init=False)
    _known: Known = field(default_factory=dict)
    _before: dict[int, Commit] = field(default_factory=dict)
    """The commits so many days before the bad end, as far as they were looked up."""

    def __post_init__(self) -> None:
        self._weighing = Weighing(self.prober, self.noise, 1 + len(DAYS))

    def run(self) -> GoodEnd:
        """Probe the bad end, then a commit from each of ``DAYS`` before it, by committer dates, until one is good.

        Where history is younger, its oldest commit is the last one tried.
        """
        self._announce()
        found = self._searched()
        self._weighing.remark()
        return found

    def _searched(self) -> GoodEnd:
        oldest = self.bad
        try:
            if (answer := self._ask(self.bad, "bad end")) is not Answer.BAD:
                reason = self._known[self.bad.hash][0].reason
                if answer is Answer.GOOD:
                    return self._none(oldest, "no_culprit", f"the bad end is good: {reason}")
                return self._none(oldest, "ends_invalid", f"the bad end cannot be tested: {reason}")
            for commit in self._tries():
                if commit.hash in self._known:
                    continue
                oldest = commit
                if self._ask(commit, "good end sought") is Answer.GOOD:
                    return GoodEnd(good=commit, oldest=commit, known=self._known)
        except OutOfTimeError:
            return self._none(oldest, "inconclusive", "the deadline passed before a good end was found")
        tried = len(self._known) - 1
        return self._none(oldest, "ends_invalid", f"none of {tried} commits back to {oldest.short} is good")

    def _tries(self) -> Iterator[Commit]:
        for days in DAYS:
            if days not in self._before:
                self._before[days] = self.repository.days_before(self.bad, days)
            yield self._before[days]

    def _ahead(self) -> Iterator[Experiment | Untestable]:
        """Yield what is asked as long as no try is good."""
        yield self.subject.experiment(self.bad)
        yield from (self.subject.experiment(commit) for commit in self._tries() if commit.hash not in self._known)

    def _announce(self) -> None:
        *earlier, last = DAYS
        days = f"{', '.join(map(str, earlier))} and {last}"
        self.prober.reporter.planned(
            SearchPlan(
                title=f"{self.repository.path}: a good commit is looked for {days} days before {self.bad.short}",
                good="",
                bad=f"{self.bad.short} {self.bad.subject}",
                candidates=len(DAYS),
                considered=len(DAYS),
                probes_at_most=1 + len(DAYS),
            )
        )

    def _ask(self, commit: Commit, role: Role) -> Answer:
        name = f"{commit.short} {commit.subject}"
        question = Question(role=role, name=name, commit=commit.hash, subject=commit.subject)
        record, result = self._weighing.ask(question, self.subject.experiment(commit), self._ahead)
        self._known[commit.hash] = record, result
        return record.answer

    def _none(
        self, oldest: Commit, outcome: Literal["no_culprit", "ends_invalid", "inconclusive"], reason: str
    ) -> GoodEnd:
        return GoodEnd(good=None, oldest=oldest, known=self._known, outcome=outcome, reason=reason)
