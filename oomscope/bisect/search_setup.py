"""What every search does first: opens the repository, begins or resumes its journal, prepares what is measured.

A search is resumed only where all that it depends on is unchanged; what changed is named. Values of variables may be
secret: of each, 16 bits of a hash are kept.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from oomscope.bisect.journal.journal_state import Begun, begun_event
from oomscope.bisect.journal.store import Journal, JournalFile, JournalStore
from oomscope.bisect.requests import CheckoutRequest, CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.result import Axis, BisectResult
from oomscope.bisect.run.identity import Machine, affects_result, digest_of
from oomscope.bisect.run.prober import Prober, SearchRequest, Services
from oomscope.bisect.run.state_dirs import InterruptedSearch
from oomscope.bisect.targets.subjects import ConfigInRepo, Subject, path_in_repo, subject_of
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.errors import GitError, InputError, MachineUnfitError, OomscopeError, UsageError
from oomscope.files import real_path
from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.machine.environment import child_environment
from oomscope.probe.process.tempdirs import tempdir
from oomscope.probe.targets.harness import harness_files

Request = TypeVar("Request", bound=SearchRequest)
More = ParamSpec("More")
Entry = Callable[Concatenate[Request, More], BisectResult]

_CLONE = "clone"
_SHOWN = 5
"""Changed inputs that an error names."""
_HEX_DIGITS_OF_A_VALUE = 4
_WORDS = {"sources": "oomscope's own code", "oomscope": "oomscope's version"}
_ALL_VARIABLES = "a variable"


def open_repository(request: CheckoutRequest | ConfigRequest) -> Repository:
    """Return the repository of ``request``, once it is known that results can be kept outside it.

    Raises:
        GitError: there is none.
        UsageError: results would be kept in git's own directory.
        InputError: they cannot be kept there.
    """
    repository = Repository.open(request.repo)
    request.state_dirs.refuse_inside(repository.common)
    request.state_dirs.make()
    return repository


@contextmanager
def prepared(
    request: CheckoutRequest, repository: Repository, ends: Sequence[Commit], services: Services
) -> Iterator[tuple[Subject, Prober]]:
    """Yield what is measured of each commit, checked at ``ends``, and what measures it; clones are gone afterwards.

    Raises:
        UsageError: the path of the configuration or the harness cannot be used, or no end has the configuration.
        ConfigError: an override is wrong for an end that is measured without it.
    """
    with tempdir(request.state_dirs.checkouts.absolute(), "bisect") as place:
        subject: Subject = subject_of(request.subject, repository, place / _CLONE)
        subject = request.preparation.of(subject, repository)
        for end in ends:
            subject.check(end)
        if isinstance(request.subject, ConfigInRepo):
            path = request.subject.path
            if not any(repository.objects_at(ends, path_in_repo(path))):
                remedy = "give it from the root of the repository"
                who = f"neither {' nor '.join(end.short for end in ends)} has" if ends[1:] else f"{ends[0].short} lacks"
                raise UsageError(f"{who} this file", where=f"--config {path}", remedy=remedy)
        with Prober.of(request, **services) as prober:
            yield subject, prober


def journalled(kind: Axis) -> Callable[[Entry[Request, More]], Entry[Request, More]]:
    """Return a decorator: the decorated search along the axis ``kind`` keeps a journal.

    A request that resumes a search (:class:`~oomscope.bisect.run.state_dirs.JournalUse`) repeats no probe.

    Raises:
        InputError: there is no such search, its journal cannot be read, or its inputs have changed.
        UsageError: that search is still running.
    """

    def decorate(search: Entry[Request, More]) -> Entry[Request, More]:
        @functools.wraps(search)
        def journalling(request: Request, /, *more: More.args, **services: More.kwargs) -> BisectResult:
            environment = cast("Mapping[str, str]", services.get("environment", os.environ))
            with _journal(request, kind, environment) as (journal, pinned_request):
                services["journal"] = journal
                result = search(cast("Request", pinned_request), *more, **services)
                problems = (journal.problem,) if journal.problem else ()
                notes = (*result.notes, *problems, *(journal.resumed.problems if journal.resumed else ()))
                result = replace(result, notes=notes, search=journal.number)
                if result.is_out_of_time:
                    result = replace(result, remedy=_resume_hint(request, journal))
                journal.ended(result)
                return result

        return journalling

    return decorate


@contextmanager
def _journal(
    request: SearchRequest, kind: Axis, environment: Mapping[str, str]
) -> Iterator[tuple[Journal, SearchRequest]]:
    """Yield the journal, and ``request`` with commits in place of revisions."""
    store, number = JournalStore(request.state_dirs.journals), request.journal.search
    with ExitStack() as stack:
        if number is None:
            pins = _pins_of(request)
            journal = Journal(begin=partial(_begin, store, request, pins, kind, environment))
        else:
            file = stack.enter_context(store.open(number))
            state = store.read(number)
            pins = state.begun.pins
            _refuse_changes(state.begun, inputs_of(request, environment))
            journal = Journal(begin=partial(_resume, file), resumed=state)
        try:
            yield journal, request.pinned(pins)
        except BaseException as error:
            is_interrupt = isinstance(error, KeyboardInterrupt | SystemExit)
            why = str(error) if isinstance(error, OomscopeError) else f"{type(error).__name__}: {error}"
            journal.stopped("interrupted" if is_interrupt else why)
            if isinstance(error, KeyboardInterrupt) and (remedy := _resume_hint(request, journal)):
                raise InterruptedSearch(remedy) from None
            hint = _resume_hint(request, journal) if journal.holds_results else None
            if isinstance(error, MachineUnfitError) and hint:
                remedy = f"{error.remedy}; {hint}" if error.remedy else hint
                raise MachineUnfitError(error.message, where=error.where, remedy=remedy) from None
            raise
        finally:
            journal.close()


def _resume_hint(request: SearchRequest, journal: Journal) -> str | None:
    """Return how to continue a search that ended early; None if the command line cannot."""
    words = journal.resumed.begun.words if journal.resumed else request.journal.words
    if not words or journal.number is None:
        return None
    return f"results are kept; continue with {request.state_dirs.resuming(journal.number)}"


def _resume(file: JournalFile) -> JournalFile:
    file.append({"event": "resumed"})
    return file


def _begin(
    store: JournalStore, request: SearchRequest, pins: dict[str, str], kind: Axis, environment: Mapping[str, str]
) -> JournalFile:
    """Return a new journal with its first line; that takes a while to compute, so the file is made after it."""
    begun = Begun(
        search=0,
        kind=kind,
        title=request.revision if isinstance(request, EnvironmentRequest) else str(getattr(request, "range", "")),
        bad=str(request.bad),
        first_parent=isinstance(request, CommitRequest) and request.first_parent,
        words=request.journal.words,
        cwd=str(Path.cwd()),
        place=place_at(getattr(request, "repo", Path())),
        pins=pins,
        inputs=inputs_of(request, environment),
    )
    file = store.begin()
    try:
        file.append(begun_event(replace(begun, search=file.number)))
    except BaseException:
        file.close()
        file.path.unlink(missing_ok=True)  # without its first line it is no journal
        raise
    store.remove_old(time.time())
    return file


def place_at(directory: Path) -> str:
    """Return git's own directory at or above ``directory``, else ``directory``."""
    try:
        return str(Repository.open(directory).common.resolve())
    except GitError:
        return str(real_path(directory))


def _pins_of(request: SearchRequest) -> dict[str, str]:
    """Return the hashes of the commits that ``request`` names, by side."""
    if not request.revisions or not isinstance(request, CheckoutRequest | ConfigRequest):
        request.state_dirs.make()
        return {}
    repository = open_repository(request)
    return {side: repository.resolve(revision).hash for side, revision in request.revisions.items()}


# What answers depend on.


def inputs_of(request: SearchRequest, environment: Mapping[str, str]) -> dict[str, str]:
    """Return digests of all that the answers of a search for ``request`` depend on, besides its commits, by name."""
    machine = Machine.here(environment)
    found = {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for path in request.files
        for file in (path, *(harness_files(path) if path.suffix == ".py" else ()))
    }
    for layer in getattr(request, "layers", ()):
        ends = {key: [str(layer.change(key).good), str(layer.change(key).bad)] for key in layer.keys}
        found[f"{layer.good}..{layer.bad}"] = digest_of(ends)
    found |= {_WORDS.get(name, name): version for name, version in machine.versions.items()}
    found["the GPUs or their driver"] = digest_of({"gpus": machine.gpus})
    if isinstance(request, ConfigRequest) or isinstance(getattr(request, "subject", None), ConfigInRepo):
        return found  # the bundled transformer sees only the measured variables, which are among the versions
    found["the installed packages"] = machine.packages
    job = ProbeJob(target=HarnessTarget(harness="", repo=""))
    seen = {name: value for name, value in child_environment(job, environment).items() if affects_result(name)}
    found |= {name: digest_of({name: value})[:_HEX_DIGITS_OF_A_VALUE] for name, value in seen.items()}
    found[_ALL_VARIABLES] = digest_of(seen)
    return found


def _refuse_changes(begun: Begun, now: Mapping[str, str]) -> None:
    """Refuse to resume a search under other inputs."""
    before = begun.inputs
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if len(changed) > 1 and _ALL_VARIABLES in changed:
        changed.remove(_ALL_VARIABLES)
    if changed:
        named = ", ".join(changed[:_SHOWN]) + (f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else "")
        raise InputError(
            f"{named} changed since search {begun.search} started",
            remedy="restore what changed, or start a new search",
        )
