"""``oomscope bisect good..bad`` over commits: the line of first parents, then into the merge at fault."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oomscope.bisect.commits import Commit, Line, Repository
from oomscope.bisect.growth import grown_sites
from oomscope.bisect.line_search import LineAnswer, LineSearch, Track
from oomscope.bisect.prober import Probe, Prober
from oomscope.bisect.reporter import Plan, Reporter, Silent
from oomscope.bisect.request import CommitRequest
from oomscope.bisect.result import BisectResult, Branch, CommitCulprit, Evidence, KeyChange, StepRow, Suspect
from oomscope.bisect.rooms import room
from oomscope.bisect.search import Found, Search
from oomscope.bisect.subjects import Subject, subject_of
from oomscope.probe import launch
from oomscope.probe.result import ProbeResult

if TYPE_CHECKING:
    from oomscope.config.schema import Config

_CLONE = "clone"


def bisect_commits(
    request: CommitRequest,
    *,
    probe: Probe = launch.run,
    reporter: Reporter | None = None,
    clock: Callable[[], float] = time.monotonic,
    environment: Mapping[str, str] | None = None,
) -> BisectResult:
    """Find the commit of ``request.range`` at fault.

    Args:
        request: what to search.
        probe: measures one job.
        reporter: told of every probe as it comes.
        clock: seconds, for the deadline.
        environment: the variables that probes see; the process's own unless given.

    The user's repository is only read. Clones lie under ``request.places`` and are gone when this returns or raises.

    Raises:
        GitError: the repository or the range cannot be used.
        UsageError: the configuration's path or the harness cannot be.
        MachineUnfitError: this machine cannot probe.
    """
    repository = Repository.open(request.repo)
    good, bad = repository.resolve(request.range.good), repository.resolve(request.range.bad)
    line = repository.line(good, bad, request.paths)
    with room(request.places.checkouts.absolute(), "bisect") as place:
        subject = subject_of(request.subject, repository, place / _CLONE)
        prober = Prober.of(
            request, probe, reporter or Silent(), clock, os.environ if environment is None else environment
        )
        return CommitBisect(request, repository, subject, prober, good, bad, line).run()


@dataclass
class CommitBisect:
    """A search over commits, with everything that it needs at hand."""

    request: CommitRequest
    repository: Repository
    subject: Subject
    prober: Prober
    good: Commit
    bad: Commit
    line: Line
    branches: list[Branch] = field(default_factory=list)

    def run(self) -> BisectResult:
        """Search the line, then what the merge at fault brought in, and return the answer."""
        for note in self.line.notes:
            self.prober.note(note)
        track = Track.of(self.line, self.subject)
        self._announce(track)
        search = LineSearch(track, self.subject, self.prober)
        answer = search.run()
        steps = search.steps()
        if answer.found is not None and answer.kind == "found":
            search, answer = self._into_merges(search, answer, answer.found)
        return self._result(track, steps, search, answer)

    def _announce(self, track: Track) -> None:
        self.prober.reporter.planned(
            Plan(
                title=f"{self.repository.path}: {self.good.short}..{self.bad.short}, bad is {self.request.bad}",
                good=f"{self.good.short} {self.good.subject}",
                bad=f"{self.bad.short} {self.bad.subject}",
                candidates=len(self.line.commits),
                considered=track.last,
                probes_at_most=2 + Search.over(track.last).probes_left if track.last else 1,
                notes=self.line.notes,
            )
        )

    def _into_merges(self, search: LineSearch, answer: LineAnswer, found: Found) -> tuple[LineSearch, LineAnswer]:
        """Return the search and answer inside the merge at fault, as deep as merges go; the given ones elsewhere."""
        merge = search.commit(found.first_bad)
        if self.request.first_parent or found.kind != "culprit" or not merge.is_merge:
            return search, answer
        for parent in range(1, len(merge.parents)):
            line = self.repository.merged_line(merge, parent, self.request.paths)
            if line is None:
                continue
            inner = LineSearch(
                Track.of(line, self.subject),
                self.subject,
                self.prober,
                good_role="merged branch",
                bad_role="merged branch",
            )
            inside = inner.run()
            if inner.results:
                self.branches.append(Branch(merge=merge.hash, steps=inner.steps()))
            if inside.found is not None:
                return self._into_merges(inner, inside, inside.found) if inside.kind == "found" else (inner, inside)
            if inside.kind == "out_of_time":
                self.prober.note(f"the deadline passed before the branch merged by {merge.short} was looked into")
                break
            self.prober.note(f"the branch merged by {merge.short} is not at fault by itself ({inside.reason})")
        return search, answer

    def _result(self, track: Track, steps: tuple[StepRow, ...], search: LineSearch, answer: LineAnswer) -> BisectResult:
        base = BisectResult(
            axis="commits",
            outcome="suspects",
            message=answer.reason,
            good=self.good.hash,
            bad=self.bad.hash,
            bad_class=str(self.request.bad),
            candidates=len(self.line.commits),
            considered=track.last,
            steps=steps,
            branches=tuple(self.branches),
            probes=tuple(self.prober.records),
        )
        if answer.found is not None:
            base = self._with_found(base, search, answer.found, answer)
        elif answer.kind == "out_of_time":
            suspects = tuple(
                Suspect(commit=commit.hash, subject=commit.subject, reason="not probed")
                for commit in search.track.commits[1:]
            )
            base = replace(base, suspects=suspects)
        else:
            base = replace(base, outcome="no_culprit" if answer.kind == "no_culprit" else "ends_invalid")
        return replace(base, notes=tuple(self.prober.notes))

    def _with_found(self, base: BisectResult, search: LineSearch, found: Found, answer: LineAnswer) -> BisectResult:
        before, after = search.results[found.last_good], search.results[found.first_bad]
        change = search.bytes_at(found.first_bad) - search.bytes_at(found.last_good)
        sites = grown_sites(before, after)
        base = replace(
            base,
            change=change,
            sites=sites,
            last_good=self._evidence(search.track.lasts[found.last_good], before),
            first_bad=self._evidence(search.commit(found.first_bad), after),
        )
        outside = self._outside_paths(search, found)
        if found.kind == "suspects" or outside:
            suspects = outside or search.suspects(found)
            why = answer.reason or ("outside the chosen paths" if outside else "the others cannot be tested")
            message = f"one of {len(suspects)} commits is at fault: {why}"
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
        message = f"{commit.short} is the first bad commit: {search.records[found.first_bad].reason}"
        return replace(base, outcome="culprit", culprit=culprit, message=message)

    def _evidence(self, commit: Commit, result: ProbeResult) -> Evidence:
        return Evidence(name=commit.hash, result=result, commands=self.subject.commands(commit))

    def _outside_paths(self, search: LineSearch, found: Found) -> tuple[Suspect, ...]:
        """Return the commits after the last that touches the chosen paths, where one of those must be at fault."""
        if not search.track.ends_outside or found.kind != "culprit" or found.first_bad != search.track.last:
            return ()
        hidden = self.repository.between(search.commit(found.last_good), search.commit(found.first_bad))
        reason = "touches none of the chosen paths; search again without them"
        return tuple(Suspect(commit=commit.hash, subject=commit.subject, reason=reason) for commit in hidden)


def changed_keys(good: Config | None, bad: Config | None) -> tuple[KeyChange, ...]:
    """Return the keys whose values differ between two configurations; none where one is missing."""
    if good is None or bad is None:
        return ()
    before, after = good.flat(), bad.flat()
    return tuple(KeyChange(key=key, good=before[key], bad=after[key]) for key in after if after[key] != before[key])
