"""``oomscope bisect resume``: go on with a search that was cut off, or whose answers were taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oomscope.cli.journals import found, search_options
from oomscope.cli.options import FILE, json_option
from oomscope.cli.options_jobs import Jobs
from oomscope.cli.options_progress import progress_options
from oomscope.cli.searches_again import asked_again
from oomscope.errors import ExitCode


@click.command(short_help="Go on with a search that was cut off.")
@search_options
@click.option("--jobs", type=Jobs(), metavar="N", help="Probes side by side (default: as the search was begun).")
@click.option("--deadline", type=click.FloatRange(min=0), metavar="SECONDS", help="End it after this long, from now.")
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@progress_options
@json_option
def resume(search: int | None, repo: Path | None, state: Path | None, **given: Any) -> ExitCode:
    """Go on with SEARCH, by default the newest of this repository: nothing is asked twice.

    It is the same search: the same commits, though branches may have moved, the same harness and the same options.
    What was answered is taken from its journal. It is refused while the search still runs, and where the files,
    variables or packages that it was begun with have changed.
    """
    from oomscope.bisect.run.places import JournalUse
    from oomscope.cli.bisect import bisect

    begun = found(search, repo, state).begun
    changes = {name: value for name, value in given.items() if value is not None and value is not False}
    paths = {"html": given["html"], "state": state}
    changes |= {name: path.absolute() for name, path in paths.items() if path is not None}
    with asked_again(begun, JournalUse(search=begun.search), changes) as ctx:
        code: ExitCode = bisect.invoke(ctx)
        return code
