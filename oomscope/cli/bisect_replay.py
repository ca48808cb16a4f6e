"""``oomscope bisect replay``: what a search answers by what it has recorded, without a probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oomscope.cli.journals import found, search_options
from oomscope.cli.options import FILE, json_option
from oomscope.cli.options_progress import progress_options
from oomscope.cli.searches_again import asked_again
from oomscope.errors import ExitCode


@click.command(short_help="Answer again from what was recorded.")
@search_options
@click.option(
    "--bad", metavar="CLASS", help="Count this as bad instead (any-oom, capacity, requested>SIZE and the like)."
)
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@progress_options
@json_option
def replay(
    search: int | None, repo: Path | None, state: Path | None, bad: str | None, html: Path | None, **given: Any
) -> ExitCode:
    """Judge the recorded evidence of SEARCH (default: the newest of this repository) once more, without a probe.

    With --bad by another measure: the search then goes another way, and a note says what is not recorded and would have
    to be probed next. Nothing is written to the journal.
    """
    from oomscope.bisect.journal_use import JournalUse
    from oomscope.cli.bisect import bisect

    begun = found(search, repo, state).begun
    changes = {
        **given,
        "html": html.absolute() if html else None,
        "tables": None,
        "fresh": True,
        "deadline": None,
        **({"bad": bad} if bad else {}),
        **({"state": state.absolute()} if state else {}),
    }
    with asked_again(begun, JournalUse(search=begun.search, only_recorded=True), changes) as ctx:
        code: ExitCode = bisect.invoke(ctx)
        return code
