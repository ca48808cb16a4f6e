"""``oomscope gate update`` and ``calibrate``: write accepted values, and bands, into the baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from oomscope.cli.gate.options import (
    announced,
    baseline_option,
    case_option,
    gate_probe,
    read_night,
    suite_argument,
)
from oomscope.cli.options import FILE, jobs_option, json_option, progress_options
from oomscope.cli.terminal.output import print_json, print_report, refuse_one_place, remark, say, write_file
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ExitCode
from oomscope.files import held

SCHEMA_VERSION = 1
LEAST_REPEATS = 5
"""Least repeats: with fewer, noise alone is red in more than one night of a hundred (docs/design/gate.md)."""


@click.command(short_help="Accept what is new or better.")
@suite_argument
@baseline_option
@case_option
@jobs_option
@click.option("--accept", multiple=True, metavar="NAME", help="Accept this case even if it is worse.")
@click.option(
    "--from",
    "result",
    type=FILE,
    metavar="FILE",
    help="Accept the results that gate run --result wrote; measure nothing.",
)
@progress_options
@json_option
def update_command(
    *,
    suite: Path,
    baseline: Path | None,
    names: tuple[str, ...],
    jobs: int,
    accept: tuple[str, ...],
    result: Path | None,
    verbosity: str | None,
    as_json: bool,
) -> ExitCode:
    """Measure SUITE.yaml and write what is accepted into its baseline.

    It accepts cases without an entry and cases that are better; a worse case only with --accept NAME. Entries of
    cases that the suite no longer has are removed, unless --case is given.

    \b
    oomscope gate update ci/memory.yaml
    oomscope gate update ci/memory.yaml --from night.json --accept llama3-8b
    """
    from oomscope.gate.accept import accept as accept_night
    from oomscope.gate.baseline import load_baseline
    from oomscope.gate.night.run import Night
    from oomscope.gate.night.status import ruling
    from oomscope.gate.suite.identity import baseline_beside
    from oomscope.gate.suite.suite import load_suite

    path = baseline or baseline_beside(suite)
    refuse_one_place(("the suite", suite), ("the baseline", path), ("--from", result))
    whole = load_suite(suite)
    chosen = whole.only(names)
    before = load_baseline(path)
    if result is None:
        with announced(chosen, verbosity) as announce:
            probe = gate_probe()
            night = Night(
                suite=chosen, baseline=before, baseline_path=path, probe=probe, jobs=jobs, announce=announce
            ).run()
    else:
        night = read_night(result)
        night = replace(night, cases=tuple(case for case in night.cases if not names or case.name in names))
    with held(path):
        now = load_baseline(path)  # others may have written in the hours since
        made = accept_night(night, now, chosen, accept)
        removed = () if names else now.beyond(whole.names)
        if made.accepted or removed:
            write_file(path, made.baseline.without(removed).to_text())
    if as_json:
        document = {"accepted": list(made.accepted), "left": dict(made.left), "removed": list(removed)}
        print_json({"schema_version": SCHEMA_VERSION, **document, "baseline": str(path)})
    else:
        for name in made.accepted:
            say(f"accepted: {name}")
        for name, reason in made.left.items():
            say(f"not accepted: {name} ({reason})")
        for name in removed:
            say(f"removed: {name} (the suite has no such case)")
        if not (made.accepted or made.left or removed):
            say("nothing to accept: every case is as the baseline has it")
    return ruling(made.left_as).exit_code if made.left else ExitCode.OK


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
    suite come before them. On a virtual card the spread is zero.
    """
    from oomscope.gate import calibrate
    from oomscope.gate.baseline import load_baseline
    from oomscope.gate.night.cases import plan_of
    from oomscope.gate.suite.identity import baseline_beside
    from oomscope.gate.suite.suite import load_suite

    path = baseline or baseline_beside(suite)
    chosen = load_suite(suite).only(names)
    load_baseline(path)  # errors in it, or in a case, come before the first measurement
    for case in chosen.cases:
        plan_of(case)
    probe, found = gate_probe(), []
    for case in chosen.cases:
        with shown_progress(case.name, verbosity) as ticker:
            ticker.stage("repetition", 0, repeats)
            found.append(
                calibrate.calibrate(case, probe, repeats, lambda done: ticker.stage("repetition", done, repeats))
            )
    with held(path):
        before = load_baseline(path)
        entries = {each.name: (each, before.find(each.name, each.key)) for each in found}
        lacking = [name for name, (_, entry) in entries.items() if entry is None]
        bands = [(name, each.entry(entry)) for name, (each, entry) in entries.items() if entry is not None]
        if write and bands:
            write_file(path, before.accepting(bands).to_text())
    if as_json:
        document = {"cases": [each.to_json() for each in found], "without_baseline": lacking, "baseline": str(path)}
        print_json({"schema_version": calibrate.SCHEMA_VERSION, **document})
    else:
        from oomscope.report.commands.gate import calibration_report

        print_report(calibration_report(found))
    for name in lacking:
        remark(f"{name}: nothing was accepted for this case here; accept it with oomscope gate update first")
    return ExitCode.NO_BASELINE if write and lacking else ExitCode.OK
