"""``oomscope gate run``: measure a suite, compare it with its baseline, and exit by what came of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.gate_standing import standings
from oomscope.cli.options import FILE, json_option
from oomscope.cli.options_gate import (
    announced,
    baseline_option,
    baseline_path,
    case_option,
    gate_probe,
    ledger_option,
    ledger_path,
    read_baseline,
    suite_argument,
)
from oomscope.cli.options_jobs import jobs_option
from oomscope.cli.options_progress import progress_options
from oomscope.cli.output import print_json, print_report, refuse_existing, refuse_one_place, remark, write_file
from oomscope.errors import ExitCode, InputError

if TYPE_CHECKING:
    from oomscope.gate.ledger import Ledger
    from oomscope.gate.result import GateResult
    from oomscope.gate.suite import Suite


@click.command(short_help="Compare a suite with its baseline.")
@suite_argument
@baseline_option
@case_option
@jobs_option
@click.option("--strict", is_flag=True, help="Better than the baseline is no success (exit code 9).")
@click.option("--bisect", is_flag=True, help="Search the commit behind each confirmed regression.")
@ledger_option
@click.option("--no-ledger", is_flag=True, help="Keep no record of this night.")
@click.option("--result", type=FILE, metavar="FILE", help="Write the JSON document to FILE as well.")
@click.option("--junit", type=FILE, metavar="FILE", help="Write JUnit XML, which CI systems show case by case.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@progress_options
@json_option
def run_command(
    *,
    suite: Path,
    baseline: Path | None,
    names: tuple[str, ...],
    jobs: int,
    strict: bool,
    bisect: bool,
    ledger: Path | None,
    no_ledger: bool,
    result: Path | None,
    junit: Path | None,
    force: bool,
    telling: str | None,
    as_json: bool,
) -> ExitCode:
    """Measure each case of SUITE.yaml and compare it with the baseline; what is worse is measured again.

    \b
    oomscope gate run ci/memory.yaml
    oomscope gate run ci/memory.yaml --jobs auto --bisect --result night.json

    Exit codes: 0 green, 1 a confirmed regression, 2 suite or baseline cannot be used, 4 nothing to compare with, 5
    machine unfit, 6 a case cannot be tested, 8 nothing was measured, 9 better than the baseline with --strict.
    """
    from oomscope.gate.run import Night
    from oomscope.gate.suite import load_suite

    against = baseline_path(suite, baseline)
    written = [("--ledger", ledger), ("--result", result), ("--junit", junit)]
    refuse_one_place(("the suite", suite), ("the baseline", against), *written)
    refuse_existing(result, force=force, option="--result")
    refuse_existing(junit, force=force, option="--junit")
    chosen = load_suite(suite).only(names)
    accepted = read_baseline(against)
    book = None if no_ledger else _opened(ledger)
    try:
        with announced(chosen, telling) as announce:
            night = Night(
                suite=chosen,
                baseline=accepted,
                baseline_path=against,
                probe=gate_probe(),
                jobs=jobs,
                strict=strict,
                stands_at=standings(),
                announce=announce,
            ).run()
        if bisect:
            night = _with_culprits(night, chosen, book, telling)
        _print(night, as_json=as_json)
        return _kept(night, book, result=result, junit=junit)
    finally:
        if book is not None:
            book.close()


def _with_culprits(night: GateResult, suite: Suite, book: Ledger | None, telling: str | None) -> GateResult:
    from oomscope.cli.gate_bisect import culprit_of

    pairs = zip(night.cases, suite.cases, strict=True)
    return replace(
        night,
        cases=tuple(replace(case, culprit=culprit_of(case, asked, night, book, telling)) for case, asked in pairs),
    )


def _print(night: GateResult, *, as_json: bool) -> None:
    if as_json:
        print_json(night.to_json())
    else:
        from oomscope.report.gate_text import gate_report

        print_report(gate_report(night))


def _kept(night: GateResult, book: Ledger | None, *, result: Path | None, junit: Path | None) -> ExitCode:
    """Keep what was printed: what cannot be kept hides nothing, and turns no red into something else."""
    code = night.exit_code
    try:
        if result is not None:
            write_file(result, json.dumps(night.to_json(), allow_nan=False))
        if junit is not None:
            from oomscope.report.gate_junit import junit_document

            write_file(junit, junit_document(night))
        if book is not None:
            book.add(night)
    except InputError as error:
        remark(f"oomscope: {error}")
        return code or ExitCode.OUTPUT_LOST
    return code


def _opened(path: Path | None) -> Ledger:
    from oomscope.gate.ledger import Ledger

    return Ledger(ledger_path(path))
