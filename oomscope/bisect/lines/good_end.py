"""Looks for a good end where none was given: back along first parents in growing steps of days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from oomscope.bisect.lines.line import Known
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import OUT_OF_TIME, Role
from oomscope.bisect.run.experiment import Experiment, OutOfTimeError
from oomscope.bisect.run.prober import Prober, Question
from oomscope.bisect.run.weighing import Weighing
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.repository import Commit, Repository

DAYS = (1, 3, 7, 14, 30, 60)
"""Days before the bad end that are tried, one after the other."""


@dataclass(kw_only=True)
class GoodEnd:
    """The result of looking for a good end."""

    good: Commit | None = None
    """The youngest good commit that was tried."""
    oldest: Commit
    """The oldest commit that was tried."""
    known: Known = field(default_factory=dict)
    """The answers on the way, with that of the bad end, by hash."""
    outcome: Literal["no_culprit", "ends_invalid", "inconclusive"] = "ends_invalid"
    """Why there is no ``good``."""
    reason: str = ""


def find_good_end(
    repository: Repository, bad: Commit, subject: Subject, prober: Prober, noise: Noise | None = None
) -> GoodEnd:
    """Probe ``bad``, then a commit from each of ``DAYS`` before it, by committer dates, until one is good.

    Where history is younger, its oldest commit is the last one tried.
    """
    days = f"{', '.join(map(str, DAYS[:-1]))} and {DAYS[-1]}"
    prober.announce(
        SearchPlan(
            title=f"{repository.path}: a good commit is looked for {days} days before {bad.short}",
            good="",
            bad=bad.title,
            candidates=len(DAYS),
            considered=len(DAYS),
            probes_at_most=1 + len(DAYS),
        )
    )
    weighing = Weighing(prober, noise, 1 + len(DAYS))
    found = GoodEnd(oldest=bad)
    tries = dict.fromkeys((bad, *(repository.days_before(bad, ago) for ago in DAYS)))

    def ahead() -> Iterator[Experiment | Untestable]:
        """Yield what is asked as long as no try is good."""
        return (subject.experiment(commit) for commit in tries if commit.hash not in found.known)

    def ask(commit: Commit, role: Role) -> Answer:
        question = Question(role=role, name=commit.title, commit=commit.hash, subject=commit.subject)
        found.known[commit.hash] = record, _ = weighing.ask(question, subject.experiment(commit), ahead)
        found.reason = record.reason
        return record.answer

    try:
        answer = ask(bad, "bad end")
        if answer is Answer.GOOD:
            found.outcome, found.reason = "no_culprit", f"the bad end is good: {found.reason}"
        elif answer is Answer.UNTESTABLE:
            found.reason = f"the bad end cannot be tested: {found.reason}"
        else:
            for commit in list(tries)[1:]:
                found.oldest = commit
                if ask(commit, "good end sought") is Answer.GOOD:
                    found.good = commit
                    break
            else:
                found.reason = f"none of {len(found.known) - 1} commits back to {found.oldest.short} is good"
    except OutOfTimeError:
        found.outcome, found.reason = "inconclusive", f"{OUT_OF_TIME} before a good end was found"
    weighing.remark()
    return found
