"""What the commands about searches share: which search is meant, and where its journal lies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.cli.options.types import FILE
from oomscope.errors import ExitCode, InputError, OomscopeError

if TYPE_CHECKING:
    from oomscope.bisect.journal.journal_state import JournalState
    from oomscope.bisect.journal.store import JournalStore

Command = TypeVar("Command", bound=Callable[..., Any])

USE = "oomscope.journal_use"


class SearchStoppedError(OomscopeError):
    """The user pressed Ctrl-C in a search that can be gone on with."""

    exit_code = ExitCode.INTERRUPTED


def search_options(command: Command) -> Command:
    """Add what says which search is meant; :func:`found` takes the values."""
    options = (
        click.argument("search", type=click.IntRange(min=1), required=False, metavar="[SEARCH]"),
        click.option(
            "--repo", type=FILE, metavar="DIR", help="Without SEARCH: the newest one of this repository (default: .)."
        ),
        state_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


state_option = click.option(
    "--state", type=FILE, metavar="DIR", help="Directory of the search's journal (default: your state directory)."
)


def store_of(state: Path | None) -> JournalStore:
    """Return the journals under ``state``, by default the user's."""
    from oomscope.bisect.journal.store import JournalStore
    from oomscope.bisect.run.places import Places

    places = Places.default() if state is None else Places(state.absolute())
    return JournalStore(places.journals)


def found(search: int | None, repo: Path | None, state: Path | None) -> JournalState:
    """Return the account of ``search``, by default of the newest search of ``repo``.

    Raises:
        InputError: there is no such search, or its journal cannot be read.
    """
    from oomscope.bisect.search_setup import place_at

    store = store_of(state)
    if search is not None:
        return store.read(search)
    place, others = place_at(repo or Path()), []
    for number in reversed(store.numbers()):
        with contextlib.suppress(InputError):
            begun = store.begun(number)
            if begun.place == place:
                return store.read(number)
            others.append(f"{number} of {begun.place}")
    known = f"; there {'is search' if len(others) == 1 else 'are searches'} {', '.join(others[:5])}"
    raise InputError(
        f"no search of {place}{known if others else ' and of nothing else'}",
        where=str(store.directory),
        remedy="name a search by its number" if others else "begin one: oomscope bisect GOOD..BAD",
    )
