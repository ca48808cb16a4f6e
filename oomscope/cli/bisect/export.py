"""``oomscope bisect export``: a search as the log of ``git bisect``."""

from __future__ import annotations

from pathlib import Path

import click

from oomscope.cli.bisect.journals import found, search_options
from oomscope.cli.options.common import json_option
from oomscope.cli.terminal.output import print_json, say
from oomscope.errors import ExitCode

SCHEMA_VERSION = 1


@click.command(short_help="Print a search as a git bisect log.")
@search_options
@json_option
def export(search: int | None, repo: Path | None, state: Path | None, as_json: bool) -> ExitCode:
    """Print SEARCH (default: the newest of this repository) as git bisect log prints its own, for git bisect replay.

    \b
    oomscope bisect export > log && git bisect replay log
    """
    from oomscope.bisect.journal.git_log import git_bisect_log

    account = found(search, repo, state)
    log = git_bisect_log(account)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "search": account.begun.search, "log": log})
    else:
        say(log.rstrip("\n"))
    return ExitCode.OK
