"""``oomscope gate calibrate``: measure cases several times, and set their bands from how much the numbers vary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.gate.options import (
    baseline_option,
    baseline_path,
    case_option,
    gate_probe,
    read_baseline,
    suite_argument,
    write_baseline,
)
from oomscope.cli.options.common import json_option, progress_options
from oomscope.cli.terminal.output import print_json, print_report, remark
from oomscope.cli.terminal.progress import Ticker, shown_progress, verbosity_of
from oomscope.errors import ExitCode
from oomscope.files import held

if TYPE_CHECKING:
    from oomscope.gate.baseline import Baseline
    from oomscope.gate.calibrate import Calibration


LEAST_REPEATS = 5
"""With fewer, normal noise alone is red in more than one night of a hundred (docs/design/gate.md)."""


@click.command(short_help="Set bands from the spread of repeated measurements.")
@suite_argument
@baseline_option
@case_option
@click.option(
    "--repeats",
    type=click.IntRange(LEAST_REPEATS, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Measurements.",
)
@click.option("--write", is_flag=True, help="Write the bands into the baseline.")
@progress_options
@json_option
def calibrate_command(
    *,
    suite: Path,
    baseline: Path | None,
    names: tuple[str, ...],
    repeats: int,
    write: bool,
    verbosity: str | None,
    as_json: bool,
) -> ExitCode:
    """Measure each case of SUITE.yaml N times and show the bands that follow; --write puts them into the baseline.

    The warn band is the spread, the fail band twice that, or the metric's default where that is wider. Bands in the
    suite come before them. On a virtual card the spread is zero. The bands of a case are written as soon as it is
    measured, so a later one that fails takes nothing with it.
    """
    from oomscope.gate.calibrate import SCHEMA_VERSION, Calibration, calibrate
    from oomscope.gate.night.cases import plan_of
    from oomscope.gate.suite.suite import load_suite

    path = baseline_path(suite, baseline)
    chosen = load_suite(suite).only(names)
    read_baseline(path)  # what is wrong with it, or with a case, is said before the first measurement
    for case in chosen.cases:
        plan_of(case)
    probe, found, written = gate_probe(), list[Calibration](), list[str]()
    try:
        for case in chosen.cases:
            with shown_progress(case.name, verbosity_of(verbosity)) as ticker:
                found.append(calibrate(case, probe, repeats, _repetitions(ticker, repeats), threading.Event()))
            if write and _write(path, found[-1]):
                written.append(case.name)
    finally:
        if written:
            remark(f"Wrote {path}: bands of {', '.join(written)}")
    before = read_baseline(path)  # others may have written since
    lacking = [one.name for one in found if before.find(one.name, one.key) is None]
    outside = {one.name: _outside(one, before) for one in found}
    if as_json:
        cases = [{**one.to_json(), "outside": outside[one.name]} for one in found]
        document = {"cases": cases, "without_baseline": lacking, "baseline": str(path)}
        print_json({"schema_version": SCHEMA_VERSION, **document})
    else:
        from oomscope.report.text.gate import calibration_report

        print_report(calibration_report(found))
    for name, metrics in outside.items():
        for metric in metrics:
            remark(f"{name}: {metric} was accepted outside the range of the repeats; see oomscope gate run")
    for name in lacking:
        remark(f"{name}: nothing was accepted for this case here; accept it with oomscope gate update first")
    return ExitCode.NO_BASELINE if write and lacking else ExitCode.OK


def _repetitions(ticker: Ticker, repeats: int) -> Callable[[int], None]:
    """Return what tells of each repetition as it is done."""
    ticker.stage("repetition", 0, repeats)
    return lambda done: ticker.stage("repetition", done, repeats)


def _outside(one: Calibration, before: Baseline) -> list[str]:
    entry = before.find(one.name, one.key)
    return [] if entry is None else one.outside(entry)


def _write(path: Path, one: Calibration) -> bool:
    """Write the bands of a case, and return whether there is an entry that they belong to."""
    with held(path):
        before = read_baseline(path)  # others may have written since
        entry = before.find(one.name, one.key)
        if entry is not None:
            write_baseline(path, before.accepting([(one.name, one.entry(entry))]), is_told=False)
    return entry is not None
