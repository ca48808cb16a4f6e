"""``oomscope bisect log``, ``resume`` and ``export``: the commands on the journal of a search."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.bisect.run.state_dirs import JournalUse
from oomscope.cli.bisect.command import USE, bisect
from oomscope.cli.options import FILE, Jobs, force_option, html_option, json_option, progress_options, together
from oomscope.cli.terminal.output import print_json, print_report, say
from oomscope.errors import ExitCode, InputError

if TYPE_CHECKING:
    from oomscope.bisect.journal.journal_state import JournalState
    from oomscope.bisect.journal.store import JournalStore

SCHEMA_VERSION = 1


_search_options = together(
    click.argument("search", type=click.IntRange(min=1), required=False, metavar="[SEARCH]"),
    click.option(
        "--repo", type=FILE, metavar="DIR", help="Without SEARCH: the newest one of this repository (default: .)."
    ),
    click.option(
        "--state", type=FILE, metavar="DIR", help="Directory of the search's journal (default: your state directory)."
    ),
)
"""Which search is meant; :func:`_found` takes the values."""


def _store_of(state: Path | None) -> JournalStore:
    from oomscope.bisect.journal.store import JournalStore
    from oomscope.bisect.run.state_dirs import StateDirs

    return JournalStore(StateDirs.at(state).journals)


def _found(search: int | None, repo: Path | None, state: Path | None) -> JournalState:
    """Return the state of ``search``, by default of the newest search of ``repo``."""
    from oomscope.bisect.search_setup import place_at

    store = _store_of(state)
    if search is not None:
        return store.read(search)
    place, others = place_at(repo or Path()), []
    for number in reversed(store.numbers()):
        with contextlib.suppress(InputError):
            found = store.read(number)
            if found.begun.place == place:
                return found
            others.append(f"{number} of {found.begun.place}")
    known = f"; there {'is search' if len(others) == 1 else 'are searches'} {', '.join(others[:5])}"
    raise InputError(
        f"no search of {place}{known if others else ', nor of any other'}",
        where=str(store.directory),
        remedy="name a search by its number" if others else "start one: oomscope bisect GOOD..BAD",
    )


@click.command(short_help="Print every probe of a search.")
@_search_options
@json_option
def log(search: int | None, repo: Path | None, state: Path | None, as_json: bool) -> ExitCode:
    """Print the state of SEARCH (default: the newest of this repository) and every answer.

    The whole evidence is in the journal itself, whose path is printed.
    """
    from oomscope.bisect.journal.journal_state import SearchStatus
    from oomscope.report.text.probes import log_report

    store, found = _store_of(state), _found(search, repo, state)
    number = found.begun.search
    status, path = SearchStatus.of(found, is_running=store.is_running(number)), str(store.path(number))
    if as_json:
        document = {
            **status.to_json(),
            "journal": path,
            "words": list(found.begun.words),
            "pins": found.begun.pins,
            "probes": [answer.to_json() for answer in found.answers],
            "problems": list(found.problems),
        }
        print_json({"schema_version": SCHEMA_VERSION, **document})
    else:
        print_report(log_report(found, status, path))
    return ExitCode.OK


@click.command(short_help="Print a search as a git bisect log.")
@_search_options
@json_option
def export(search: int | None, repo: Path | None, state: Path | None, as_json: bool) -> ExitCode:
    """Print SEARCH (default: the newest of this repository) as git bisect log prints its own, for git bisect replay.

    \b
    oomscope bisect export > log && git bisect replay log
    """
    from oomscope.bisect.journal.git_log import git_bisect_log

    found = _found(search, repo, state)
    text = git_bisect_log(found)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "search": found.begun.search, "log": text})
    else:
        say(text.rstrip("\n"))
    return ExitCode.OK


@click.command(short_help="Continue an interrupted search.")
@_search_options
@click.option("--jobs", type=Jobs(), metavar="N", help="Probes at once (default: as the search was started).")
@click.option("--deadline", type=click.FloatRange(min=0), metavar="SECONDS", help="End it after this long, from now.")
@html_option
@force_option
@progress_options
@json_option
def resume(search: int | None, repo: Path | None, state: Path | None, **given: Any) -> ExitCode:
    """Continue SEARCH, by default the newest of this repository; no probe is repeated.

    The search continues with the same commits (even if branches moved), harness and options. Answers come from its
    journal. It is refused while the search still runs, or if its files, variables or packages have changed.
    """
    begun = _found(search, repo, state).begun
    if not begun.words:
        remedy = "let that program continue it (docs/bisect.md)"
        raise InputError(f"search {begun.search} was started by a program", remedy=remedy)
    changes = {name: value for name, value in given.items() if value is not None and value is not False}
    paths = {"html": given["html"], "state": state}
    changes |= {name: path.absolute() for name, path in paths.items() if path is not None}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(contextlib.chdir(begun.cwd))
        except OSError as error:
            what = f"search {begun.search} was started in a directory that cannot be entered: {error.strerror}"
            raise InputError(what, where=begun.cwd, remedy="put it back") from None
        with bisect.make_context("bisect", list(begun.words)) as ctx:
            ctx.meta[USE] = JournalUse(search=begun.search)
            ctx.params.update(changes)
            code: ExitCode = bisect.invoke(ctx)
            return code
