"""``oomscope bisect status``: the searches that there are, and where each stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.journals import state_option, store_of
from oomscope.cli.options import FILE, json_option
from oomscope.cli.output import print_json, print_report
from oomscope.cli.searches_again import suspects_left
from oomscope.errors import ExitCode, InputError

if TYPE_CHECKING:
    from oomscope.bisect.account import Account
    from oomscope.bisect.journal_store import JournalStore
    from oomscope.bisect.standing import Standing

SCHEMA_VERSION = 1


@click.command(short_help="List searches and where they stand.")
@click.argument("search", type=click.IntRange(min=1), required=False, metavar="[SEARCH]")
@click.option("--repo", type=FILE, metavar="DIR", help="Only searches of this repository.")
@click.option("--suspects", is_flag=True, help="Also say among how many changes the culprit is (always for SEARCH).")
@state_option
@json_option
def status(search: int | None, repo: Path | None, suspects: bool, state: Path | None, as_json: bool) -> ExitCode:
    """List all searches (or SEARCH): whether they run, were interrupted or ended, and how far they came.

    Probes are those answered of those that the search may take, untestable ones apart. Suspects are recomputed from the
    recorded answers, search by search.
    """
    from oomscope.bisect.pins import place_at
    from oomscope.report.journal_text import status_report

    store = store_of(state)
    place = None if repo is None else place_at(repo)
    standings, problems = [], []
    for number in [search] if search is not None else store.numbers():
        try:
            if place is None or store.begun(number).place == place:
                standing, account = _standing(store, number)
                if standing.state != "ended" and (suspects or search is not None):
                    standing = replace(standing, suspects=suspects_left(account, state))
                standings.append(standing)
        except InputError as error:
            if search is not None:
                raise
            problems.append(str(error))
    if as_json:
        searches = [standing.to_json() for standing in standings]
        print_json({"schema_version": SCHEMA_VERSION, "searches": searches, "problems": problems})
    else:
        print_report(status_report(standings, problems))
    return ExitCode.OK


def _standing(store: JournalStore, number: int) -> tuple[Standing, Account]:
    from oomscope.bisect.standing import Standing

    account = store.read(number, with_evidence=False)
    return Standing.of(account, is_running=store.is_running(number)), account
