"""From a confirmed regression to its commit: a search from the last green night in the ledger to what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from oomscope.bisect import commit_bisect
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.missing_files import missing_file
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import Reporter
from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.run.state_dirs import InterruptedSearch, JournalUse, StateDirs
from oomscope.bisect.search.line import Answer
from oomscope.bisect.targets.preparation import Fixup, Preparation
from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode, own_code_of, subject_of
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import GitError, InconclusiveError, OomscopeError, UsageError
from oomscope.files import real_path
from oomscope.gate.checkouts import folder_of, newest_before, path_inside
from oomscope.gate.ledger.ledger import Ledger
from oomscope.gate.night.cases import own_target, traced
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import (
    QUANTITIES,
    UNEXPLAINED,
    CaseResult,
    Culprit,
    GateResult,
    GrownLine,
    with_variables,
)
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import series_of
from oomscope.gate.suite.suite import Case, Suite
from oomscope.probe.targets.settings import harness_settings

ANY_OOM = "any-oom"
"""The name of running out of memory in ``--bad``."""
NOT_SEARCHED = "not searched"
LINES_KEPT = 10
"""Lines that grew with the commit and are kept at most."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of the search for a commit."""

    ledger: Ledger | None
    """The ledger with the green nights; None for no ledger."""
    reporter: Callable[[], AbstractContextManager[Reporter]]
    """Opens the progress of one search."""
    jobs: int = 1
    """Probes side by side."""
    state: Path | None = None
    """Directory of results, clones and journals; None for that of ``oomscope bisect``."""


def with_culprits(night: GateResult, suite: Suite, settings: SearchSettings) -> GateResult:
    """Return ``night`` with the commit of each regression; an interrupt ends the searches and not the night."""
    cases, interrupted = list(night.cases), ""
    for number, (case, measured) in enumerate(zip(night.cases, suite.cases, strict=True)):
        if case.status is not Status.WORSE:
            continue
        if interrupted:
            culprit = Culprit(outcome=NOT_SEARCHED, message="an earlier search of this night was interrupted")
        else:
            try:
                culprit = culprit_of(case, measured, night, settings)
            except KeyboardInterrupt as stop:
                remedy = stop.remedy if isinstance(stop, InterruptedSearch) else "oomscope bisect starts it again"
                interrupted = f"the search was interrupted; {remedy}"
                culprit = Culprit(outcome=NOT_SEARCHED, message=interrupted)
        cases[number] = replace(case, culprit=culprit)
    return replace(night, cases=tuple(cases))


def culprit_of(case: CaseResult, measured: Case, night: GateResult, settings: SearchSettings) -> Culprit:
    """Return the commit that made ``case`` worse, or why it cannot be searched."""
    try:
        good = _start(case, measured, night, settings)
        request = _request(case, measured, good, settings)
        with settings.reporter() as reporter:
            found = commit_bisect.bisect_commits(request, reporter=reporter)
        culprit = _culprit(found, good, None if case.ran_out else case.searched)
        if missing := missing_file(found, request.repo):
            remedy = f"git does not track {missing.name}: add link: [{missing.link}] to the case in {measured.where}"
            culprit = replace(culprit, message=f"{culprit.message}; {remedy}")
        return _with_commands(culprit, request, case, night) if culprit.commit else culprit
    except OomscopeError as error:
        return Culprit(outcome=NOT_SEARCHED, message=str(error))
    except Exception as error:  # noqa: BLE001 - a defect of the search hides no regression
        return Culprit(outcome=NOT_SEARCHED, message=f"internal error: {traced(error)}; please report it")


def _start(case: CaseResult, measured: Case, night: GateResult, settings: SearchSettings) -> str:
    """Return the commit that the search begins with: that of the last green night before what was measured.

    Raises:
        InconclusiveError: there is none, or no search could find it.
        GitError: the history cannot be read.
    """
    if measured.kind == "preset":
        raise InconclusiveError("a preset has no history: what changed is oomscope, torch or the machine")
    if case.standing is None:
        raise InconclusiveError("what was measured is not in a git repository")
    if not _bad(case):
        raise InconclusiveError("only requested bytes, reserved bytes and OOM can be searched")
    words = shlex.join(_words(_request(case, measured, "GOOD", settings), measured, settings))
    remedy = f"name a good commit yourself: oomscope bisect {words}"
    if settings.ledger is None:
        raise InconclusiveError("there is no ledger with the last green night", remedy=remedy)
    green = settings.ledger.green_commits(case, series_of(night.suite, night.home))
    if not green:
        raise InconclusiveError("the ledger has no green night of this case at another commit", remedy=remedy)
    folder = folder_of(measured)
    nearest = newest_before(folder, case.standing.commit, green)
    if nearest is None:
        shallow = "the clone is shallow: run git fetch --unshallow"
        why = shallow if Repository.open(folder).is_shallow else "other branches"
        raise InconclusiveError(
            f"no green night of this case is at an earlier commit of this history ({why})", remedy=remedy
        )
    return nearest


def _bad(case: CaseResult) -> str:
    """Return the class of bad results: out of memory where it fitted, or that metric; empty where there is none."""
    if case.ran_out:
        return ANY_OOM
    row = case.searched
    return "" if row is None else f"{QUANTITIES[row.name]}>{(row.expected or 0) + (row.fail or 0)}"


def _request(case: CaseResult, measured: Case, good: str, settings: SearchSettings) -> CommitRequest:
    head = case.standing.commit if case.standing else ""
    request = CommitRequest(
        repo=real_path(folder_of(measured)),
        range=RevisionRange(good=good, bad=head),
        subject=_subject(measured),
        preparation=Preparation(
            fixups=tuple(Fixup.parse(text, measured.folder) for text in measured.fixups),
            setup=measured.setup,
            links=measured.links,
        ),
        bad=Bad.parse(_bad(case)),
        jobs=settings.jobs,
        state_dirs=StateDirs.at(settings.state),
    )
    return replace(request, journal=JournalUse(words=_words(request, measured, settings)))


def _words(request: CommitRequest, case: Case, settings: SearchSettings) -> tuple[str, ...]:
    """Return the words after ``oomscope bisect`` that ask the same, by which ``bisect resume`` goes on."""
    subject = request.subject
    if isinstance(subject, OwnCode):
        target = subject.target_at("").words()
    else:
        target = ("--config", subject.path, *(("--from", subject.dialect) if subject.dialect else ()))
    prepared = request.preparation
    named = [("--link", link) for link in prepared.links] + [("--fixup", str(fixup)) for fixup in prepared.fixups]
    if prepared.setup:
        named.append(("--setup", prepared.setup))
    state = () if settings.state is None else ("--state", str(settings.state.absolute()))
    return (
        f"{request.range.good}..{request.range.bad}",
        *case.overrides,
        *("--repo", str(request.repo.absolute()), *target, *chain.from_iterable(named), "--bad", str(request.bad)),
        *("--jobs", str(settings.jobs), *state),
    )


def _subject(case: Case) -> ConfigInRepo | OwnCode:
    if case.own_kind is not None:
        target = own_target(case, case.own_kind).at("")  # a target in no commit
        return own_code_of(target, harness_settings(case.overrides), case.overrides)
    return ConfigInRepo(path=path_inside(case.path), dialect=case.extras.get("from"), overrides=case.overrides)


_OUTSIDE = (
    "the program allocates differently each time (seed it, or calibrate the case), or something outside the repository "
    "changed since (packages, data, the card)"
)


def _unexplained(found: BisectResult, good: str) -> str:
    """Return what it means that the ends of the search measure otherwise than their nights did; empty where they do."""
    ends = {probe.role: probe for probe in found.probes if probe.role in {"good end", "bad end"}}
    first, last = ends.get("good end"), ends.get("bad end")
    if found.outcome == "no_culprit" and last is not None:
        return f"{UNEXPLAINED}: measured by the search, this commit is not worse ({last.reason}): {_OUTSIDE}"
    if found.outcome != "ends_invalid" or first is None or first.answer is not Answer.BAD:
        return ""
    if last is not None and last.answer is Answer.GOOD:
        what = f"now the last green commit {good[:10]} is worse ({first.reason}), and this one is not"
    else:
        what = f"the last green commit {good[:10]} is worse now as well ({first.reason})"
    return f"{UNEXPLAINED}: {what}: {_OUTSIDE}"


def _culprit(found: BisectResult, good: str, row: MetricRow | None) -> Culprit:
    verdict = found.verdict.headline if found.verdict and found.first_bad and found.first_bad.result.oom else ""
    message = _unexplained(found, good) or found.message
    culprit = Culprit(outcome=found.outcome, message=message, good=good, verdict=verdict)
    commit = found.culprit
    if not isinstance(commit, CommitCulprit):
        return culprit
    rows = sorted(commit.sites, key=lambda each: -each.delta_bytes)[:LINES_KEPT]
    grown = tuple(
        GrownLine(site=each.site, category=each.category, delta_bytes=each.delta_bytes)
        for each in rows
        if each.site is not None and each.delta_bytes > 0
    )
    grew = {"peak_requested": commit.delta.requested_bytes, "peak_reserved": commit.delta.reserved_bytes}
    return replace(
        culprit,
        brought=None if row is None else grew[row.name],
        beyond=None if row is None else row.difference,
        commit=commit.commit,
        subject=commit.subject,
        author=commit.author,
        site=grown[0].site.brief if grown else "",
        grown=grown,
    )


def _with_commands(culprit: Culprit, request: CommitRequest, case: CaseResult, night: GateResult) -> Culprit:
    """Return ``culprit`` with commands that measure its commit on any machine: at the root of a checkout, as here."""
    choice, backend = request.subject, case.key.backend if case.key else ""
    if backend in {"virtual", "cuda"} and not any(text.startswith("probe.backend=") for text in choice.overrides):
        choice = replace(choice, overrides=(*choice.overrides, f"probe.backend={backend}"))
    root = Path(night.suite.removesuffix(night.home.path)) if night.home is not None else None
    try:
        repository = Repository.open(request.repo)
        subject = request.preparation.of(subject_of(choice, repository, Path()), repository)
        *before, probe = subject.commands(repository.resolve(culprit.commit), root)
    except (GitError, UsageError):  # the repository or what it links to is gone by now, and the commit is known
        return culprit
    return replace(culprit, commands=(*before, with_variables(night.variables, probe)))
