"""``oomscope gate history`` and ``import``: the ledger of all nights, shown as trends, and made again from results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from oomscope.cli.gate.options import ledger_option, ledger_path, read_night
from oomscope.cli.options import FILE, force_option, json_option
from oomscope.cli.terminal.output import Files, late, print_json, print_report, say
from oomscope.errors import ExitCode, InputError, UsageError, gravest
from oomscope.printable import quoted

SCHEMA_VERSION = 1


@click.command(short_help="Show the trend of each case.")
@click.argument("names", nargs=-1, metavar="[CASE]...")
@click.option("--metric", default="peak_requested", show_default=True, metavar="NAME", help="What is shown.")
@click.option("--suite", type=FILE, metavar="FILE", help="Only nights of this suite, in any checkout.")
@click.option("--last", type=click.IntRange(1), default=30, show_default=True, metavar="N", help="Nights of each case.")
@ledger_option
@click.option("--html", type=FILE, metavar="FILE", help="Write the trends as one offline HTML page.")
@click.option("--png", type=FILE, metavar="FILE", help="Write the trends as a picture (plots extra).")
@force_option
@json_option
def history_command(
    *,
    names: tuple[str, ...],
    metric: str,
    suite: Path | None,
    last: int,
    ledger: Path | None,
    html: Path | None,
    png: Path | None,
    force: bool,
    as_json: bool,
) -> ExitCode:
    """Print the trend of each CASE (default: all), with the commits that were measured.

    \b
    oomscope gate history
    oomscope gate history llama3-8b --metric peak_reserved --html trend.html
    """
    from oomscope.files import real_path
    from oomscope.gate.checkouts import home_of
    from oomscope.gate.ledger import history
    from oomscope.gate.ledger.ledger import Ledger
    from oomscope.gate.suite.identity import series_of
    from oomscope.gate.suite.metrics import METRICS

    if metric not in METRICS:
        raise UsageError(
            f"unknown metric {quoted(metric)}", where="--metric", remedy=f"metrics are {', '.join(METRICS)}"
        )
    place = ledger_path(ledger)
    files = Files({"--html": html, "--png": png})
    files.refuse(("--ledger", place), force=force)
    if not place.exists():
        raise InputError("no ledger", where=str(place), remedy="run oomscope gate run first, or give --ledger")
    series = None if suite is None else series_of(str(real_path(suite)), home_of(suite))
    with Ledger(place) as open_ledger:
        points = [
            point
            for name in tuple(dict.fromkeys(names)) or (None,)
            for point in open_ledger.points(name, suite=series, last=last)
        ]
    found = history.trends(points, metric)
    known = {trend.name for trend in found}
    for name in names:
        if name not in known:
            what = f"no night of a case {quoted(name)}{f' of {suite}' if suite else ''}"
            raise InputError(what, where=str(place), remedy="see oomscope gate history for all cases")
    if not known:
        what = f"no night of {suite}" if suite else "the ledger has no night yet"
        raise InputError(what, where=str(place), remedy="run oomscope gate run first")
    makes = {
        "--html": late("oomscope.report.html.pages:history_page", found, metric=metric),
        "--png": late("oomscope.report.charts.pictures:history_picture", found),
    }
    lost = files.write(makes)
    if as_json:
        print_json({"schema_version": history.SCHEMA_VERSION, "trends": [trend.to_json() for trend in found]})
    else:
        from oomscope.report.commands.gate_history import history_report

        print_report(history_report(found))
    return gravest([ExitCode.OK, *lost])


@click.command(short_help="Add JSON results to a ledger.")
@click.argument("results", nargs=-1, required=True, type=FILE, metavar="RESULT.json...")
@ledger_option
@json_option
def import_command(*, results: tuple[Path, ...], ledger: Path | None, as_json: bool) -> ExitCode:
    """Add the nights of RESULT.json to the ledger, each once; this rebuilds a lost or damaged ledger.

    All files are read before anything is written.

    \b
    oomscope gate import nights/*.json --ledger gate.sqlite
    """
    from oomscope.gate.ledger.ledger import Ledger

    nights = []
    for path in results:
        night = read_night(path)  # without the measurements of its cases, which would fill the memory
        nights.append(replace(night, cases=tuple(replace(case, probe=None) for case in night.cases)))
    place = ledger_path(ledger)
    with Ledger(place) as open_ledger:
        added = sum(open_ledger.put(night) for night in nights)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "added": added, "known": len(nights) - added})
    else:
        say(f"{added} added, {len(nights) - added} known before: {place}")
    return ExitCode.OK
