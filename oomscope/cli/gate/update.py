"""``oomscope gate update``: write what is accepted into the baseline, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.gate.options import (
    announced,
    baseline_option,
    baseline_path,
    case_option,
    gate_probe,
    read_baseline,
    read_night,
    suite_argument,
    write_baseline,
)
from oomscope.cli.options.common import jobs_option, json_option, progress_options
from oomscope.cli.options.types import FILE
from oomscope.cli.terminal.output import print_json, refuse_one_place, say
from oomscope.errors import ExitCode
from oomscope.files import held

if TYPE_CHECKING:
    from oomscope.gate.accept import Acceptance
    from oomscope.gate.baseline import Baseline
    from oomscope.gate.night.result import GateResult
    from oomscope.gate.suite.suite import Suite

SCHEMA_VERSION = 1


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
    from oomscope.gate.suite.suite import load_suite

    path = baseline_path(suite, baseline)
    refuse_one_place(("the suite", suite), ("the baseline", path), ("--from", result))
    whole = load_suite(suite)
    chosen = whole.only(names)
    before = read_baseline(path)
    night = _measured(chosen, before, path, jobs, verbosity) if result is None else _chosen(read_night(result), names)
    with held(path):
        now = read_baseline(path)  # others may have written in the hours since
        made = accept_night(night, now, chosen, accept)
        gone = () if names else now.beyond(whole.names)
        if made.accepted or gone:
            write_baseline(path, made.baseline.without(gone))
    if as_json:
        document = {"accepted": list(made.accepted), "left": dict(made.left), "removed": list(gone)}
        print_json({"schema_version": SCHEMA_VERSION, **document, "baseline": str(path)})
    else:
        _say(made, gone)
    return _exit_code(made)


def _measured(chosen: Suite, before: Baseline, path: Path, jobs: int, verbosity: str | None) -> GateResult:
    from oomscope.gate.night.run import Night

    with announced(chosen, verbosity) as announce:
        return Night(
            suite=chosen, baseline=before, baseline_path=path, probe=gate_probe(), jobs=jobs, announce=announce
        ).run()


def _chosen(night: GateResult, names: tuple[str, ...]) -> GateResult:
    return night if not names else replace(night, cases=tuple(case for case in night.cases if case.name in names))


def _say(made: Acceptance, gone: tuple[str, ...]) -> None:
    for name in made.accepted:
        say(f"accepted: {name}")
    for name, why in made.left.items():
        say(f"not accepted: {name} ({why})")
    for name in gone:
        say(f"removed: {name} (the suite has no such case)")
    if not (made.accepted or made.left or gone):
        say("nothing to accept: every case is as the baseline has it")


def _exit_code(made: Acceptance) -> ExitCode:
    """Return what the cases that were left come to: 0 where each of them passes as it is."""
    from oomscope.gate.night.status import exit_code

    return exit_code(made.left_as) if made.left else ExitCode.OK
