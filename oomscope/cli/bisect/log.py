"""``oomscope bisect log``: every probe of a search."""

from __future__ import annotations

from pathlib import Path

import click

from oomscope.cli.bisect.journals import found, search_options, store_of
from oomscope.cli.options.common import json_option
from oomscope.cli.terminal.output import print_json, print_report
from oomscope.errors import ExitCode

SCHEMA_VERSION = 1


@click.command(short_help="Print every probe of a search.")
@search_options
@json_option
def log(search: int | None, repo: Path | None, state: Path | None, as_json: bool) -> ExitCode:
    """Print the state of SEARCH (default: the newest of this repository) and every answer.

    The whole evidence is in the journal itself, whose path is printed.
    """
    from oomscope.bisect.journal.journal_state import SearchStatus
    from oomscope.report.text.probes import log_report

    store, account = store_of(state), found(search, repo, state)
    number = account.begun.search
    standing = SearchStatus.of(account, is_running=store.is_running(number))
    if not as_json:
        print_report(log_report(account, standing, str(store.path(number))))
        return ExitCode.OK
    print_json(
        {
            "schema_version": SCHEMA_VERSION,
            **standing.to_json(),
            "journal": str(store.path(number)),
            "words": list(account.begun.words),
            "pins": account.begun.pins,
            "probes": [answer.to_json() for answer in account.answers],
            "problems": list(account.problems),
        }
    )
    return ExitCode.OK
