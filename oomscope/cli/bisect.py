"""``oomscope bisect``: find the commit, or the configuration keys, at fault, and print the evidence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.bisect.run.places import InterruptedSearch, JournalUse
from oomscope.cli.bisect_group import PATHS, WORDS, SearchGroup, complete_first_word
from oomscope.cli.journals import USE, SearchStoppedError
from oomscope.cli.options import FILE, finite, json_option, measurement_options, settings_overrides
from oomscope.cli.options_axes import AxisOptions, axis_options
from oomscope.cli.options_checkouts import CheckoutOptions, checkout_options
from oomscope.cli.options_cluster import cluster_options, cluster_settings
from oomscope.cli.options_jobs import jobs_option
from oomscope.cli.options_noise import NoiseOptions, noise_options
from oomscope.cli.options_progress import progress_options
from oomscope.cli.options_steps import StepOptions, step_options
from oomscope.cli.options_targets import TargetOptions, target_options
from oomscope.cli.output import print_json, print_report, refuse_existing, refuse_one_place, write_file
from oomscope.cli.search import run_search
from oomscope.cli.search_options import SearchOptions
from oomscope.cli.source import dialect_option
from oomscope.cli.tables import BISECT_TABLES, csv_option, refuse_existing_tables, table_files, write_bisect_tables
from oomscope.cli.written import written
from oomscope.errors import ExitCode, gravest

if TYPE_CHECKING:
    from oomscope.bisect.results.result import BisectResult

_OUTPUT = ("html", "tables", "force", "telling", "as_json")
"""Parameters that say how the answer is given."""


@click.group(
    cls=SearchGroup, invoke_without_command=True, short_help="Find the commit or the configuration keys at fault."
)
@click.argument("ends", metavar="GOOD..BAD", shell_complete=complete_first_word)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... [-- PATH...]")
@click.option("--repo", type=FILE, metavar="DIR", help="The repository, or the folder of it to measure (default: .).")
@click.option("--config", metavar="PATH", help="Measure the configuration that lies at PATH in each commit.")
@dialect_option
@target_options
@click.option("--bad", default="any-oom", metavar="CLASS", help="What counts as bad (default: any-oom).")
@click.option("--first-parent", is_flag=True, help="Name a merge at fault instead of searching what it brought in.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0),
    callback=finite,
    metavar="SECONDS",
    help="End the search after this long, with its suspects.",
)
@step_options
@noise_options
@axis_options
@checkout_options
@jobs_option
@cluster_options
@measurement_options
@click.option("--fresh", is_flag=True, help="Probe anew what an earlier search has measured.")
@click.option("--state", type=FILE, metavar="DIR", help="Where results, clones and journals are kept.")
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
@csv_option
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@progress_options
@json_option
@click.pass_context
def bisect(
    ctx: click.Context,
    /,
    *,
    html: Path | None,
    tables: Path | None,
    force: bool,
    telling: str | None,
    as_json: bool,
    **given: Any,
) -> ExitCode:
    """Find the first bad commit between GOOD and BAD, or the keys at fault where both are configuration files.

    With --axis environment one commit or file is enough: what changes is in --env, --good-env and --bad-env.

    KEY=VALUE overrides a configuration key at every commit or in both files. After -- come paths: only commits that
    touch one of them can be at fault. The repository is never written to (unless --state DIR is in its work tree).

    CLASS is any-oom, capacity, fragmentation, requested>SIZE, reserved>SIZE or, of a command, exit.

    \b
    oomscope bisect v1.2..main --harness harness.py --limit 80GiB
    oomscope bisect v1.2..main --config configs/train.yaml --gpu h100-80gb
    oomscope bisect ..main --find-good --harness harness.py --steps
    oomscope bisect good.yaml..bad.yaml --bad 'requested>70GiB'
    oomscope bisect v1.2 --axis environment --harness h.py --env a.env..b.env
    """
    from oomscope.cli.onlooker import onlooker_of

    read = [("--harness", given["harness"]), *_files_read(given["ends"], is_open=given["find_good"])]
    refuse_one_place(*read, ("--html", html), *table_files(tables, BISECT_TABLES))
    refuse_existing(html, force=force, option="--html")
    refuse_existing_tables(tables, BISECT_TABLES, force=force)
    options = options_of(ctx)
    onlooker = onlooker_of(telling, answers_here=not as_json)
    try:
        result = run_search(options, onlooker)
    except InterruptedSearch as stop:
        raise SearchStoppedError("interrupted", remedy=stop.remedy) from None
    finally:
        onlooker.close()
    lost = _write_files(result, f"Bisect of {options.ends}", html=html, tables=tables)
    if as_json:
        print_json(result.to_json())
    else:
        from oomscope.report.text.bisect import bisect_report

        print_report(bisect_report(result))
    return gravest([result.exit_code, *lost])


def _write_files(result: BisectResult, title: str, *, html: Path | None, tables: Path | None) -> list[ExitCode]:
    """Write what was asked for, before anything is printed, and return the codes of what is lost."""
    lost: list[ExitCode] = []
    if html is not None:
        lost += written(partial(_write_page, html, result, title))
    if tables is not None:
        lost += written(partial(write_bisect_tables, tables, result))
    return lost


def _write_page(path: Path, result: BisectResult, title: str) -> None:
    from oomscope.report.html.bisect import bisect_page

    write_file(path, bisect_page(result, title=title))


def options_of(ctx: click.Context) -> SearchOptions:
    """Return what ``ctx``, a search that was parsed, asks for."""
    given = {name: value for name, value in ctx.params.items() if name not in _OUTPUT}
    overrides = (*given.pop("overrides"), *settings_overrides(given))
    given["steps"] = StepOptions.of(given)
    given["noise"] = NoiseOptions.of(given)
    given["target"] = TargetOptions.of(given)
    given["cluster"] = cluster_settings(given)
    given["checkouts"] = CheckoutOptions.of(given)
    given["journal"] = ctx.meta.get(USE) or JournalUse(words=ctx.meta[WORDS])
    return SearchOptions(overrides=overrides, paths=ctx.meta[PATHS], axes=AxisOptions.of(given), **given)


def _files_read(ends: str, *, is_open: bool) -> list[tuple[str, Path]]:
    """Return the configurations that a search over keys reads, with their name for people; none of an open range."""
    from oomscope.bisect.vcs.ranges import FileRange, parse_ends

    range_ = None if is_open else parse_ends(ends)
    files = (range_.good, range_.bad) if isinstance(range_, FileRange) else ()
    return [("GOOD..BAD", file) for file in files if isinstance(file, Path)]
