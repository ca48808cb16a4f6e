"""Lets a search keep a journal: it is begun with the plan, and a search that goes on finds its answers in it."""

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

from oomscope.bisect.account import Account
from oomscope.bisect.inputs import Surroundings, changed_inputs, inputs_of, plain
from oomscope.bisect.journal import Begun, begun_event, resumed_event
from oomscope.bisect.journal_bound import remove_old
from oomscope.bisect.journal_store import JournalFile, JournalStore
from oomscope.bisect.journal_use import InterruptedSearch
from oomscope.bisect.pins import pinned, pins_of, place_of, title_of
from oomscope.bisect.places import Places
from oomscope.bisect.recorder import Recorder
from oomscope.bisect.reporter import Reporter, Silent
from oomscope.bisect.request import SearchRequest
from oomscope.bisect.result import BisectResult
from oomscope.errors import InputError, OomscopeError

Request = TypeVar("Request", bound=SearchRequest)
More = ParamSpec("More")
Entry = Callable[Concatenate[Request, More], BisectResult]

SHOWN = 5


def journalled(search: Entry[Request, More]) -> Entry[Request, More]:
    """Return ``search`` keeping a journal under the places of its request.

    A request that goes on with a search (:class:`~oomscope.bisect.journal_use.JournalUse`) asks nothing twice.

    Raises:
        InputError: there is no such search, its journal cannot be read, or what it was begun with has changed.
        UsageError: that search is still running.
    """

    @functools.wraps(search)
    def journalling(request: Request, /, *more: More.args, **means: More.kwargs) -> BisectResult:
        environment = cast("Mapping[str, str]", means.get("environment", os.environ))
        reporter = cast("Reporter", means.get("reporter", Silent()))
        with _recorder(request, search.__name__, reporter, environment) as (recorder, held):
            means.update(reporter=recorder, memory=recorder)
            result = _with_remarks(search(cast("Request", held), *more, **means), recorder)
            recorder.ended(result)
            return result

    return journalling


@contextmanager
def _recorder(
    request: SearchRequest, name: str, reporter: Reporter, environment: Mapping[str, str]
) -> Iterator[tuple[Recorder, SearchRequest]]:
    """Yield who writes the journal, and ``request`` with commits in place of revisions."""
    store, number = JournalStore(request.places.journals), request.journal.search
    with ExitStack() as stack:
        if number is None:
            pins = pins_of(request)
            begin: Callable[[], JournalFile] = partial(_begin, store, request, pins, name, environment)
            recorder = Recorder(reporter=reporter, begin=begin)
        else:
            journal = stack.enter_context(store.open(number))
            account = store.read(number)
            pins = account.begun.pins
            _refuse_changes(account, request, environment)
            recorder = Recorder(reporter=reporter, begin=partial(_go_on, journal), account=account)
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
    words = recorder.account.begun.words if recorder.account is not None else request.journal.words
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
    store: JournalStore, request: SearchRequest, pins: dict[str, str], name: str, environment: Mapping[str, str]
) -> JournalFile:
    """Return a new journal with its first line, which takes a while to know and none to write."""
    begun = _begun(request, pins, name, environment)
    journal = store.begin()
    try:
        journal.append(begun_event(replace(begun, search=journal.number)))
    except BaseException:
        journal.close()
        journal.path.unlink(missing_ok=True)  # without its first line it is no journal
        raise
    remove_old(store, time.time())
    return journal


def _begun(request: SearchRequest, pins: dict[str, str], name: str, environment: Mapping[str, str]) -> Begun:
    """Return the first line of a search that has no number yet."""
    return Begun(
        search=0,
        kind=name.removeprefix("bisect_"),
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


def _refuse_changes(account: Account, request: SearchRequest, environment: Mapping[str, str]) -> None:
    """Refuse to go on under other inputs or surroundings.

    Raises:
        InputError: something has changed.
    """
    begun = account.begun
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
    if recorder.account is not None:
        notes += recorder.account.problems
    return replace(result, notes=tuple(notes), search=recorder.number)
