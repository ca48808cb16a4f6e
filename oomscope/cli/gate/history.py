"""``oomscope gate history``: how the numbers of each case went, night by night, with commits."""

from __future__ import annotations

from pathlib import Path

import click

from oomscope.cli.gate.options import ledger_option, ledger_path
from oomscope.cli.options.common import json_option
from oomscope.cli.options.types import FILE, PICTURE
from oomscope.cli.terminal.output import print_json, print_report
from oomscope.cli.terminal.output_files import Files
from oomscope.errors import ExitCode, InputError, UsageError, gravest
from oomscope.gate.checkouts import home_of

METRIC = "peak_requested"


@click.command(short_help="Show the trend of each case.")
@click.argument("names", nargs=-1, metavar="[CASE]...")
@click.option("--metric", default=METRIC, show_default=True, metavar="NAME", help="What is shown.")
@click.option("--suite", type=FILE, metavar="FILE", help="Only nights of this suite, in any checkout.")
@click.option("--last", type=click.IntRange(1), default=30, show_default=True, metavar="N", help="Nights of each case.")
@ledger_option
@click.option("--html", type=FILE, metavar="FILE", help="Write the trends as one offline HTML page.")
@click.option("--png", type=PICTURE, metavar="FILE", help="Write the trends as a picture (plots extra).")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
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
    from oomscope.gate.ledger.history import SCHEMA_VERSION, trends
    from oomscope.gate.ledger.ledger import Ledger
    from oomscope.gate.suite.identity import Place
    from oomscope.gate.suite.metrics import METRICS
    from oomscope.gate.suite.suite import suite_id

    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}", where="--metric", remedy=f"metrics are {', '.join(METRICS)}")
    place = ledger_path(ledger)
    files = Files(html=html, png=png)
    files.refuse(("--ledger", place), force=force)
    if not place.exists():
        raise InputError("no ledger", where=str(place), remedy="run oomscope gate run first, or give --ledger")
    of_suite = None if suite is None else Place(path=suite_id(suite), home=home_of(suite))
    with Ledger(place) as book:
        points = [
            point
            for name in tuple(dict.fromkeys(names)) or (None,)
            for point in book.points(name, suite=of_suite, last=last)
        ]
    found = trends(points, metric)
    _refuse_unknown(names, {trend.name for trend in found}, place, suite)

    def page() -> str:
        from oomscope.report.html.gate_history import history_page

        return history_page(found, metric=metric)

    def picture() -> bytes:
        from oomscope.report.charts.pictures import history_picture

        return history_picture(found)

    lost = files.write(page=page, picture=picture)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "trends": [trend.to_json() for trend in found]})
    else:
        from oomscope.report.text.gate_history import history_report

        print_report(history_report(found))
    return gravest([ExitCode.OK, *lost])


def _refuse_unknown(names: tuple[str, ...], known: set[str], place: Path, suite: Path | None) -> None:
    of_suite = f" of {suite}" if suite else ""
    for name in names:
        if name not in known:
            raise InputError(
                f"no night of a case {name!r}{of_suite}",
                where=str(place),
                remedy="see oomscope gate history for all cases",
            )
    if not known and suite:
        raise InputError(
            f"no night{of_suite}", where=str(place), remedy="see oomscope gate history, without --suite, for all"
        )
    if not known:
        raise InputError("the ledger has no night yet", where=str(place), remedy="run oomscope gate run first")
