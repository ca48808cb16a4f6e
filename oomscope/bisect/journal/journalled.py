"""Keeps the journal of a search: begins it with the plan, or resumes a search from the answers in it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from oomscope.bisect.journal.inputs import Surroundings, changed_inputs, inputs_of, plain
from oomscope.bisect.journal.journal_state import Begun, JournalState, begun_event, resumed_event
from oomscope.bisect.journal.recorder import Recorder
from oomscope.bisect.journal.store import JournalFile, JournalStore, remove_old
from oomscope.bisect.requests import CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.reporter import Reporter, SilentReporter
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.run.places import InterruptedSearch, Places
from oomscope.bisect.run.request import SearchRequest
from oomscope.bisect.vcs.ranges import FileAt, RevisionRange
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import GitError, InputError, OomscopeError
from oomscope.files import real_path

Request = TypeVar("Request", bound=SearchRequest)
More = ParamSpec("More")
Entry = Callable[Concatenate[Request, More], BisectResult]

SHOWN = 5


def journalled(kind: str) -> Callable[[Entry[Request, More]], Entry[Request, More]]:
    """Return a decorator: the decorated search keeps a journal, which calls it a search of ``kind``.

    A request that goes on with a search (:class:`~oomscope.bisect.run.places.JournalUse`) asks nothing twice.

    Raises:
        InputError: there is no such search, its journal cannot be read, or what it was begun with has changed.
        UsageError: that search is still running.
    """

    def decorate(search: Entry[Request, More]) -> Entry[Request, More]:
        @functools.wraps(search)
        def journalling(request: Request, /, *more: More.args, **services: More.kwargs) -> BisectResult:
            environment = cast("Mapping[str, str]", services.get("environment", os.environ))
            reporter = cast("Reporter", services.get("reporter", SilentReporter()))
            with _recorder(request, kind, reporter, environment) as (recorder, held):
                services.update(reporter=recorder, memory=recorder)
                result = _with_remarks(search(cast("Request", held), *more, **services), recorder)
                recorder.ended(result)
                return result

        return journalling

    return decorate


@contextmanager
def _recorder(
    request: SearchRequest, kind: str, reporter: Reporter, environment: Mapping[str, str]
) -> Iterator[tuple[Recorder, SearchRequest]]:
    """Yield who writes the journal, and ``request`` with commits in place of revisions."""
    store, number = JournalStore(request.places.journals), request.journal.search
    with ExitStack() as stack:
        if number is None:
            pins = pins_of(request)
            begin: Callable[[], JournalFile] = partial(_begin, store, request, pins, kind, environment)
            recorder = Recorder(reporter=reporter, begin=begin)
        else:
            journal = stack.enter_context(store.open(number))
            search_state = store.read(number)
            pins = search_state.begun.pins
            _refuse_changes(search_state, request, environment)
            recorder = Recorder(reporter=reporter, begin=partial(_go_on, journal), search_state=search_state)
        try:
            yield recorder, pinned(request, pins)
        except BaseException as error:
            recorder.stopped(_why(error))
            if isinstance(error, KeyboardInterrupt) and (kept := _resumable(recorder, request)) is not None:
                raise InterruptedSearch(
                    kept, None if request.places == Places.default() else request.places.root
                ) from None
            raise
        finally:
            recorder.close()


def _resumable(recorder: Recorder, request: SearchRequest) -> int | None:
    """Return the number by which the command line can go on; None where it cannot."""
    words = recorder.search_state.begun.words if recorder.search_state is not None else request.journal.words
    return recorder.number if words else None


def _why(error: BaseException) -> str:
    """Return what ended a search, in words."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "interrupted"
    return str(error) if isinstance(error, OomscopeError) else f"{type(error).__name__}: {error}"


def _go_on(journal: JournalFile) -> JournalFile:
    """Return ``journal`` with a line that says that its search goes on."""
    journal.append(resumed_event())
    return journal


def _begin(
    store: JournalStore, request: SearchRequest, pins: dict[str, str], kind: str, environment: Mapping[str, str]
) -> JournalFile:
    """Return a new journal with its first line, which takes a while to know and none to write."""
    begun = _begun(request, pins, kind, environment)
    journal = store.begin()
    try:
        journal.append(begun_event(replace(begun, search=journal.number)))
    except BaseException:
        journal.close()
        journal.path.unlink(missing_ok=True)  # without its first line it is no journal
        raise
    remove_old(store, time.time())
    return journal


def _begun(request: SearchRequest, pins: dict[str, str], kind: str, environment: Mapping[str, str]) -> Begun:
    """Return the first line of a search that has no number yet."""
    return Begun(
        search=0,
        kind=kind,
        title=title_of(request),
        bad=str(request.bad),
        words=request.journal.words,
        cwd=str(Path.cwd()),
        place=place_of(request),
        pins=pins,
        inputs=inputs_of(request),
        surroundings=Surroundings.here(request, environment).to_json(),
        request=plain(request),
    )


def _refuse_changes(search_state: JournalState, request: SearchRequest, environment: Mapping[str, str]) -> None:
    """Refuse to go on under other inputs or surroundings.

    Raises:
        InputError: something has changed.
    """
    begun = search_state.begun
    changed = changed_inputs(begun.inputs, inputs_of(request))
    changed += Surroundings.here(request, environment).changes_since(begun.surroundings)
    if changed:
        named = ", ".join(changed[:SHOWN]) + (f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else "")
        raise InputError(
            f"search {begun.search} was begun with another state of {named}",
            remedy="put it back, or begin a new search",
        )


def _with_remarks(result: BisectResult, recorder: Recorder) -> BisectResult:
    """Return ``result`` with what has to be said of its journal, and its number."""
    notes = [*result.notes, *([recorder.problem] if recorder.problem else [])]
    if recorder.search_state is not None:
        notes += recorder.search_state.problems
    return replace(result, notes=tuple(notes), search=recorder.number)


Pins = dict[str, str]
"""Hashes of commits by the side that they are: ``good``, ``bad``."""


def pins_of(request: SearchRequest) -> Pins:
    """Return the commits that ``request`` names; none of a side that is a file or is to be looked for.

    Raises:
        GitError: there is no such repository, or no such commit.
        UsageError: results would be kept in git's own directory.
        InputError: there is no place for them.
    """
    revisions = _revisions(request)
    if not revisions:
        request.places.make()
        return {}
    repository = Repository.open(_repo_of(request))
    request.places.refuse_inside(repository.common)
    request.places.make()
    return {side: repository.resolve(revision).hash for side, revision in revisions.items()}


def pinned(request: SearchRequest, pins: Mapping[str, str]) -> SearchRequest:
    """Return ``request`` with the commits ``pins`` in place of the revisions that they stood for."""
    if isinstance(request, CommitRequest):
        ends = request.range
        good = pins.get("good", ends.good)
        return replace(request, range=RevisionRange(good=good, bad=pins.get("bad", ends.bad)))
    if isinstance(request, EnvironmentRequest):
        return replace(request, revision=pins.get("good", request.revision))
    if isinstance(request, ConfigRequest):
        files = {"good": request.range.good, "bad": request.range.bad}
        held = {
            side: replace(file, commit=pins[side]) if isinstance(file, FileAt) and side in pins else file
            for side, file in files.items()
        }
        return replace(request, range=replace(request.range, **held))
    return request


def title_of(request: SearchRequest) -> str:
    """Return the ends of ``request`` as they were written."""
    return request.revision if isinstance(request, EnvironmentRequest) else str(getattr(request, "range", ""))


def place_of(request: SearchRequest) -> str:
    """Return git's own directory of the repository of ``request``, else the directory of the search."""
    return place_at(_repo_of(request))


def place_at(directory: Path) -> str:
    """Return git's own directory at or above ``directory``, else ``directory``."""
    try:
        return str(Repository.open(directory).common.resolve())
    except GitError:
        return str(real_path(directory))


def _repo_of(request: SearchRequest) -> Path:
    repo = getattr(request, "repo", None)
    return repo if isinstance(repo, Path) else Path()


def _revisions(request: SearchRequest) -> dict[str, str]:
    if isinstance(request, CommitRequest):
        sides = {"good": request.range.good, "bad": request.range.bad}
        return {side: revision for side, revision in sides.items() if revision}
    if isinstance(request, EnvironmentRequest):
        return {"good": request.revision}
    if isinstance(request, ConfigRequest):
        files = {"good": request.range.good, "bad": request.range.bad}
        return {side: file.revision for side, file in files.items() if isinstance(file, FileAt)}
    return {}
