"""``oomscope bisect resume``: go on with a search that was cut off, or whose answers were taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.bisect.run.places import JournalUse
from oomscope.cli.bisect.command import bisect
from oomscope.cli.bisect.journals import USE, found, search_options
from oomscope.cli.options.common import json_option, progress_options
from oomscope.cli.options.types import FILE, Jobs
from oomscope.errors import ExitCode, InputError

if TYPE_CHECKING:
    from oomscope.bisect.journal.journal_state import Begun


@click.command(short_help="Continue an interrupted search.")
@search_options
@click.option("--jobs", type=Jobs(), metavar="N", help="Probes side by side (default: as the search was begun).")
@click.option("--deadline", type=click.FloatRange(min=0), metavar="SECONDS", help="End it after this long, from now.")
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@progress_options
@json_option
def resume(search: int | None, repo: Path | None, state: Path | None, **given: Any) -> ExitCode:
    """Continue SEARCH, by default the newest of this repository; no probe is repeated.

    The search continues with the same commits (even if branches moved), harness and options. Answers come from its
    journal. It is refused while the search still runs, or if its files, variables or packages have changed.
    """
    from oomscope.bisect.run.places import JournalUse
    from oomscope.cli.bisect.command import bisect

    begun = found(search, repo, state).begun
    changes = {name: value for name, value in given.items() if value is not None and value is not False}
    paths = {"html": given["html"], "state": state}
    changes |= {name: path.absolute() for name, path in paths.items() if path is not None}
    with asked_again(begun, JournalUse(search=begun.search), changes) as ctx:
        code: ExitCode = bisect.invoke(ctx)
        return code


@contextlib.contextmanager
def asked_again(begun: Begun, use: JournalUse, changes: Mapping[str, Any]) -> Iterator[click.Context]:
    """Yield the context of the command line that began a search, in the directory in which it was given.

    Args:
        begun: the search.
        use: what is done with its journal.
        changes: values of parameters in place of those that were given.

    Raises:
        InputError: it cannot be asked again from here.
    """
    if not begun.words:
        raise InputError(
            f"search {begun.search} was begun by a program", remedy="let the program go on with it (docs/bisect.md)"
        )
    try:
        stay = contextlib.chdir(begun.cwd)
        stay.__enter__()
    except OSError as error:
        raise InputError(
            f"search {begun.search} was begun in a directory that cannot be entered: {error.strerror}",
            where=begun.cwd,
            remedy="put it back",
        ) from None
    try:
        with bisect.make_context("bisect", list(begun.words)) as ctx:
            ctx.meta[USE] = use
            ctx.params.update(changes)
            yield ctx
    finally:
        stay.__exit__(None, None, None)
