"""``oomscope bisect good..bad --axis both``: whether the code is at fault, the configuration, or only both.

The two corners that no commit holds (old code with the new configuration, new code with the old one) are probed first.
What is at fault is then searched with the other unchanged, so that what is found is at fault by itself; where only both
together are, each is searched with the other as in the bad commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Unpack

from oomscope.bisect.change_bisect import DeltaBisect
from oomscope.bisect.changes.yaml_leaves import ConfigLeaves, WithConfigOf
from oomscope.bisect.commit_bisect import CommitBisect
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import OUT_OF_TIME, BisectResult, KeysCulprit, ProbeRecord, Role, judge_ends
from oomscope.bisect.results.sections import CodeVsConfig, Corner
from oomscope.bisect.run.experiment import Experiment, OutOfTimeError
from oomscope.bisect.run.prober import Prober, Question, Services
from oomscope.bisect.run.weighing import Weighing
from oomscope.bisect.search.line import Search
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.search_setup import journalled, open_repository, prepared
from oomscope.bisect.targets.subjects import Subject, path_in_repo
from oomscope.bisect.vcs.repository import Commit, CommitLine, Repository

_CORNERS = 4
MESSAGES = {
    "code": "the code is at fault, also with the old configuration",
    "config": "the configuration is at fault, also with the old code",
    "combination": "neither is at fault alone: only the new code with the new configuration is bad",
    "either": "the new code alone is bad, and so is the new configuration alone",
    "unknown": "it is unknown which is at fault: one of the four combinations of code and configuration "
    "cannot be tested",
}


@journalled("both")
def bisect_code_vs_config(request: CommitRequest, config: str, **services: Unpack[Services]) -> BisectResult:
    """Find whether the code or the configuration of ``request.range`` is at fault, and what in it.

    Args:
        request: what to search; its subject reads the configuration out of the checkout.
        config: the configuration's path from the root of the repository.
        services: see :class:`~oomscope.bisect.run.prober.Services`.

    Raises:
        OomscopeError: as for :func:`~oomscope.bisect.commit_bisect.bisect_commits`.
    """
    repository = open_repository(request)
    good, bad = repository.resolve(request.range.good), repository.resolve(request.range.bad)
    line = repository.line(good, bad, request.paths)
    with prepared(request, repository, (good, bad), services) as (subject, prober):
        return CodeVsConfigSearch(request, repository, subject, prober, good, bad, line, path_in_repo(config)).run()


@dataclass(frozen=True)
class CodeVsConfigSearch:
    """A search over code and configuration, with everything that it needs at hand."""

    request: CommitRequest
    repository: Repository
    subject: Subject
    prober: Prober
    good: Commit
    bad: Commit
    line: CommitLine
    path: str

    def run(self) -> BisectResult:
        """Probe the corners, search what is at fault, and return the answer."""
        commits = len(self.line.commits)
        self.prober.announce(
            SearchPlan(
                title=f"{self.repository.path}: code and {self.path} of {self.good.short}..{self.bad.short}",
                good=self.good.title,
                bad=self.bad.title,
                candidates=commits,
                considered=commits,
                probes_at_most=_CORNERS + Search.over(commits).probes_left,
                more_if=("the configuration contributes (its keys are searched too)",),
            )
        )
        base = BisectResult(
            axis="both",
            outcome="inconclusive",
            message=f"{OUT_OF_TIME} before the four combinations were measured",
            good=self.good.hash,
            bad=self.bad.hash,
            bad_class=str(self.request.bad),
            candidates=self.repository.count(self.good, self.bad, first_parent=self.request.first_parent),
            on_line=commits,
            considered=commits,
        )
        try:
            return self.prober.completed(self._answered(base))
        except OutOfTimeError:
            return self.prober.completed(base)

    def _answered(self, base: BisectResult) -> BisectResult:
        weighing = Weighing(self.prober, self.request.noise, _CORNERS)
        good = self._asked(weighing, self.good, self.good, "good end")
        bad = self._asked(weighing, self.bad, self.bad, "bad end")
        answered = judge_ends(good, bad)
        if answered is not None:
            weighing.remark()
            return replace(base, outcome=answered.kind, message=answered.reason)
        square = CodeVsConfig(
            path=self.path,
            old_old=_corner(self.good, self.good, good),
            new_old=_corner(self.bad, self.good, self._asked(weighing, self.bad, self.good, "corner")),
            old_new=_corner(self.good, self.bad, self._asked(weighing, self.good, self.bad, "corner")),
            new_new=_corner(self.bad, self.bad, bad),
        )
        weighing.remark()
        return self._searched(replace(base, square=square), square)

    def _asked(self, weighing: Weighing, code: Commit, config: Commit, role: Role) -> ProbeRecord:
        name = f"code of {code.short} with {self.path} of {config.short}"
        question = Question(role=role, name=name, subject=name)
        record, _ = weighing.ask(question, self._experiment(code, config), self._corners)
        return record

    def _corners(self) -> Iterator[Experiment | Untestable]:
        """Yield how the corners are measured, in the order in which they are asked about."""
        corners = ((self.good, self.good), (self.bad, self.bad), (self.bad, self.good), (self.good, self.bad))
        return (self._experiment(code, config) for code, config in corners)

    def _experiment(self, code: Commit, config: Commit) -> Experiment | Untestable:
        return WithConfigOf(self.subject, self.repository, self.path, config).experiment(code)

    def _searched(self, base: BisectResult, square: CodeVsConfig) -> BisectResult:
        """Search the side at fault; if both contribute, report the commit as the culprit, and the keys with it."""
        message = MESSAGES[square.guilty]
        if square.guilty == "unknown":
            return replace(base, message=message)
        code, config = (self.bad, self.bad) if square.guilty == "combination" else (self.good, self.good)
        keys = None
        if square.guilty != "code":
            leaves = ConfigLeaves(self.subject, self.repository, self.path, code, self.good, self.bad)
            keys = DeltaBisect(leaves, self.prober, axis="both", noise=self.request.noise).run()
        if keys is not None and square.guilty == "config":
            answered = keys
        else:
            subject = WithConfigOf(self.subject, self.repository, self.path, config)
            search = CommitBisect(self.request, self.repository, subject, self.prober, self.good, self.bad, self.line)
            answered = search.run()
            if keys is not None and isinstance(keys.culprit, KeysCulprit):
                answered = replace(answered, also=keys.culprit)
        return replace(
            answered,
            axis="both",
            square=square,
            message=f"{message}: {answered.message}",
            good=base.good,
            bad=base.bad,
            candidates=base.candidates,
            on_line=base.on_line,
            considered=base.considered,
        )


def _corner(code: Commit, config: Commit, record: ProbeRecord) -> Corner:
    return Corner(code=code.hash, config=config.hash, answer=record.answer, reason=record.reason, peak=record.peak)
