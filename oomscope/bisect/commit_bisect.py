"""``oomscope bisect good..bad`` over commits: the line of first parents, then into the merge at fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

from oomscope.bisect.changes.narrow import TurningPoint, narrow
from oomscope.bisect.journal.journalled import journalled
from oomscope.bisect.lines.good_end import GoodEndSearch
from oomscope.bisect.lines.line_search import LineSearch
from oomscope.bisect.lines.merges import MergeOpener, Walked
from oomscope.bisect.lines.noisy_line import LineSearcher, posterior_of, sure
from oomscope.bisect.lines.probed_line import Known, Track
from oomscope.bisect.lines.step_walk import StepWalk
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.growth import grown_sites
from oomscope.bisect.results.noise import percent
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import BisectResult, CommitCulprit, KeyChange, ProbeEvidence, SearchOutcome
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.run.prober import Prober, Services
from oomscope.bisect.search.line import Search, SearchFinding
from oomscope.bisect.search_setup import open_repository, prepared
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import CommitLine, Repository
from oomscope.bisect.vcs.uncommitted import has_uncommitted_changes
from oomscope.errors import GitError
from oomscope.probe.result import ProbeResult

if TYPE_CHECKING:
    from oomscope.config.schema import Config


@journalled("commits")
def bisect_commits(request: CommitRequest, **services: Unpack[Services]) -> BisectResult:
    """Find the commit of ``request.range`` at fault; where it has no good end, one is looked for first.

    Args:
        request: what to search.
        services: see :class:`~oomscope.bisect.run.prober.Services`.

    The user's repository is only read. Clones lie under ``request.places`` and are gone when this returns or raises.

    Raises:
        GitError: the repository or the range cannot be used.
        UsageError: the configuration's path or the harness cannot be, or the place lies in git's own directory.
        ConfigError: an override is wrong for an end that is measured without it.
        InputError: there is no place for clones and results.
        MachineUnfitError: this machine cannot probe.
    """
    repository = open_repository(request)
    bad = repository.resolve(request.range.bad)
    if request.range.is_open:
        return _bisect_from(request, repository, bad, services)
    good = repository.resolve(request.range.good)
    line = repository.line(good, bad, request.paths)
    with prepared(request, repository, (good, bad), services) as (subject, prober):
        return CommitBisect(request, repository, subject, prober, good, bad, line).run()


def _bisect_from(request: CommitRequest, repository: Repository, bad: Commit, services: Services) -> BisectResult:
    """Look for a good end before ``bad``, and search from there."""
    with prepared(request, repository, (bad,), services) as (subject, prober):
        sought = GoodEndSearch(repository, bad, subject, prober, request.noise).run()
        if sought.good is not None:
            line = repository.line(sought.good, bad, request.paths)
            return CommitBisect(request, repository, subject, prober, sought.good, bad, line, sought.known).run()
        candidates = repository.count(sought.oldest, bad, first_parent=request.first_parent)
        return BisectResult(
            axis="commits",
            outcome=sought.outcome,
            message=sought.reason,
            good=sought.oldest.hash,
            bad=bad.hash,
            bad_class=str(request.bad),
            candidates=candidates,
            on_line=candidates,
            considered=candidates,
            probes=tuple(prober.records),
            cost=prober.cost,
            notes=tuple(prober.notes),
        )


@dataclass
class CommitBisect:
    """A search over commits, with everything that it needs at hand."""

    request: CommitRequest
    repository: Repository
    subject: Subject
    prober: Prober
    good: Commit
    bad: Commit
    line: CommitLine
    known: Known = field(default_factory=dict)
    """What was answered of commits before, by hash."""

    def run(self) -> BisectResult:
        """Search the line, then what the merge at fault brought in, and return the answer."""
        for note in (*self.line.notes, *_uncommitted(self.repository, self.bad)):
            self.prober.note(note)
        track = Track.of(self.line, self.subject)
        candidates = self.repository.count(self.good, self.bad, first_parent=self.request.first_parent)
        base = BisectResult(
            axis="commits",
            outcome="inconclusive",
            message="",
            good=self.good.hash,
            bad=self.bad.hash,
            bad_class=str(self.request.bad),
            candidates=candidates,
            on_line=len(self.line.commits),
            considered=len(track.chosen),
            paths=self.request.paths,
        )
        self._announce(track, base)
        search = LineSearch(track, self.subject, self.prober)
        search.recall(self.known)
        searching = LineSearcher(self.request.noise)
        answer = searching.run(search)
        walked = Walked(search, answer, search.steps())
        opener = None if self.request.first_parent else MergeOpener(self.repository, self.request.paths, searching.run)
        if opener is not None:
            walked = opener.walk(search, answer)
        answered = replace(self._with_answer(base, walked), steps=walked.steps)
        if self.request.steps is not None and (
            found := StepWalk(self.request.steps, opener, searching.noise_of(search)).walk(search)
        ):
            rows, waterfall = found
            answered = replace(answered, steps=rows, waterfall=waterfall)
        return replace(
            answered,
            probes=tuple(self.prober.records),
            notes=tuple(self.prober.notes),
            lines=(self._line_of(track), *(opener.lines if opener else ())),
            cost=self.prober.cost,
        )

    @staticmethod
    def _line_of(track: Track) -> WalkedLine:
        return WalkedLine.of(track.positions, track.chosen)

    def _announce(self, track: Track, base: BisectResult) -> None:
        more_if = []
        if track.probes_more:
            outside = "the culprit touches none of the chosen paths or its parent cannot be tested"
            more_if.append(f"{outside} (up to {track.probes_more} more)")
        if not self.request.first_parent and any(commit.is_merge for commit in self.line.commits):
            more_if.append("a merge is at fault (what it brought in is searched as well)")
        if self.request.noise is not None and self.request.noise.is_heeded:
            more_if.append(
                f"no answer is {percent(self.request.noise.confidence)} sure by then (commits are probed again)"
            )
        looks = self.request.steps.looks if self.request.steps is not None else 0
        at_most = min(track.probes_at_most + looks, track.last + 1) if looks else track.probes_at_most
        if self.request.steps is not None and at_most <= track.last:
            each = Search.over(track.last).probes_left
            more_if.append(f"the bytes change with more than one commit (up to {each} more for each further one)")
        self.prober.reporter.planned(
            SearchPlan(
                title=f"{self.repository.path}: {self.good.short}..{self.bad.short}, bad is {self.request.bad}",
                good=f"{self.good.short} {self.good.subject}",
                bad=f"{self.bad.short} {self.bad.subject}",
                candidates=base.candidates,
                considered=base.considered,
                probes_at_most=at_most,
                more_if=tuple(more_if),
                notes=self.line.notes,
                line=self._line_of(track),
            )
        )

    def _with_answer(self, base: BisectResult, walked: Walked) -> BisectResult:
        answer = walked.answer
        if answer.found is not None:
            return self._with_found(base, walked, answer.found)
        outcome: SearchOutcome = "inconclusive"
        if answer.kind in {"no_culprit", "ends_invalid"}:
            outcome = "no_culprit" if answer.kind == "no_culprit" else "ends_invalid"
        return replace(base, outcome=outcome, message=answer.reason, posterior=posterior_of(walked.search))

    def _with_found(self, base: BisectResult, walked: Walked, found: SearchFinding) -> BisectResult:
        search = walked.search
        before, after = search.results[found.last_good], search.results[found.first_bad]
        change = search.bytes_at(found.first_bad) - search.bytes_at(found.last_good)
        sites = grown_sites(before, after, search.sources(found.last_good, found.first_bad))
        base = replace(
            base,
            change=change,
            sites=sites,
            posterior=posterior_of(search),
            last_good=self._evidence(search.last_commit(found.last_good), before),
            first_bad=self._evidence(search.commit(found.first_bad), after),
        )
        if walked.suspects or found.kind == "suspects":
            suspects = walked.suspects or search.suspects(found)
            before_it = f"those before {search.commit(found.first_bad).short} cannot be tested"
            reason = walked.answer.reason or before_it
            message = f"one of {len(suspects)} commits is at fault: {reason}"
            return replace(base, outcome="suspects", suspects=suspects, message=message)
        commit = search.commit(found.first_bad)
        culprit = CommitCulprit(
            commit=commit.hash,
            subject=commit.subject,
            author=commit.author,
            date=commit.date,
            delta=change,
            sites=sites,
            keys=changed_keys(self.subject.config(search.commit(found.last_good)), self.subject.config(commit)),
        )
        if self.request.hunks:
            turn = TurningPoint(
                before=search.last_commit(found.last_good),
                after=commit,
                records=(search.records[found.last_good], search.records[found.first_bad]),
                results=(before, after),
            )
            culprit = narrow(culprit, turn, self.repository, self.subject, self.prober, noise=self.request.noise)
        message = f"{commit.short} is the first bad commit{_sureness(search)}: {search.records[found.first_bad].reason}"
        return replace(base, outcome="culprit", culprit=culprit, message=message)

    def _evidence(self, commit: Commit, result: ProbeResult) -> ProbeEvidence:
        return ProbeEvidence(name=commit.hash, result=result, commands=self.subject.commands(commit))


def _sureness(search: LineSearch) -> str:
    """Return how sure the answer of a search that weighed its answers is, in words."""
    return f", {sure(search.posterior)}" if search.posterior else ""


def changed_keys(good: Config | None, bad: Config | None) -> tuple[KeyChange, ...]:
    """Return the keys whose values differ between two configurations; none where one is missing."""
    if good is None or bad is None:
        return ()
    before, after = good.flat(), bad.flat()
    return tuple(KeyChange(key=key, good=before[key], bad=after[key]) for key in after if after[key] != before[key])


def _uncommitted(repository: Repository, bad: Commit) -> Iterator[str]:
    """Yield a note where the work tree is not the commit that it has checked out, and that is the bad end."""
    try:
        if repository.resolve("HEAD").hash == bad.hash and has_uncommitted_changes(repository.path):
            yield "changes in the work tree that are not committed are no part of the search"
    except (GitError, OSError):  # a bare repository has no work tree
        return
