"""``oomscope bisect undo``: take the last answers of a search back."""

from __future__ import annotations

from pathlib import Path

import click

from oomscope.cli.journals import found, search_options, store_of
from oomscope.cli.options import MOST, json_option
from oomscope.cli.output import print_json, print_report
from oomscope.errors import ExitCode, UsageError

SCHEMA_VERSION = 1


@click.command(short_help="Take the last answers of a search back.")
@search_options
@click.option("--last", type=click.IntRange(1, MOST), default=1, metavar="N", help="How many (default: 1).")
@json_option
def undo(search: int | None, repo: Path | None, state: Path | None, last: int, as_json: bool) -> ExitCode:
    """Take the last answers of SEARCH (default: the newest of this repository) back.

    Nothing is erased: the journal says that they no longer count. The next resume probes them anew, also where the
    cache has a result. Answers that rest on the same measurement go together.
    """
    from oomscope.bisect.journal import undone_event
    from oomscope.report.journal_text import undone_report

    store = store_of(state)
    number = found(search, repo, state).begun.search
    with store.open(number) as journal:
        account = store.read(number)
        gone = account.last(last)
        if not gone:
            raise UsageError(f"search {number} has no answer to take back", remedy="see oomscope bisect log")
        journal.append(undone_event(last))
    if as_json:
        records = [answer.record.to_json() for answer in gone]
        print_json({"schema_version": SCHEMA_VERSION, "search": number, "taken_back": records})
    else:
        print_report(undone_report(number, gone))
    return ExitCode.OK
