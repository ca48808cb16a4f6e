"""A search asked again: the command line that began it is parsed anew where it was given, with its journal at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from oomscope.bisect.run.places import JournalUse
from oomscope.cli.bisect import bisect
from oomscope.cli.journals import USE
from oomscope.errors import InputError

if TYPE_CHECKING:
    from oomscope.bisect.journal.events import Begun


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
            f"search {begun.search} was begun by a program", remedy="let the program go on with it (docs/journal.md)"
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
