"""``oomscope gate run``: measure a suite, compare it with its baseline, and exit by what came of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.gate.options import (
    OutputOptions,
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
from oomscope.cli.gate.outputs import keep_outputs, write_outputs
from oomscope.cli.options.common import jobs_option, json_option, progress_options
from oomscope.cli.options.types import FILE
from oomscope.cli.terminal.output import internal_error, refuse_one_place, remark
from oomscope.errors import UsageError
from oomscope.gate.checkouts import home_of, standings, with_places

if TYPE_CHECKING:
    from oomscope.gate.ledger.ledger import Ledger
    from oomscope.gate.night.result import GateResult
    from oomscope.gate.suite.suite import Suite


@click.command(short_help="Compare a suite with its baseline.")
@suite_argument
@baseline_option
@case_option
@jobs_option
@click.option("--strict", is_flag=True, help="Fail (exit code 9) if better than the baseline.")
@click.option("--bisect", is_flag=True, help="Search the commit behind each confirmed regression.")
@click.option(
    "--state", type=FILE, metavar="DIR", help="With --bisect: where results, clones and journals of searches are kept."
)
@ledger_option
@click.option("--no-ledger", is_flag=True, help="Keep no record of this night.")
@OutputOptions.add
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
    state: Path | None,
    ledger: Path | None,
    no_ledger: bool,
    verbosity: str | None,
    as_json: bool,
    **written: Any,
) -> int:
    """Measure each case of SUITE.yaml and compare it with the baseline; what is worse is measured again.

    \b
    oomscope gate run ci/memory.yaml
    oomscope gate run ci/memory.yaml --jobs auto --bisect --result night.json
    oomscope gate run ci/memory.yaml --junit night.xml --html night.html

    Exit codes: 0 green, 1 a confirmed regression, 2 suite or baseline cannot be used, 4 nothing to compare with, 5
    machine unfit, 6 a case cannot be tested, 8 nothing was measured, 9 better than the baseline with --strict.
    """
    from oomscope.gate.night.run import InterruptedNight, Night
    from oomscope.gate.suite.suite import load_suite
    from oomscope.probe.machine.environment import own_environment, told_variables
    from oomscope.probe.machine.processes import signals_as_exits

    if state is not None and not bisect:
        raise UsageError("--state without --bisect", remedy="add --bisect, or leave it out: nothing is searched")
    against = baseline_path(suite, baseline)
    outputs = OutputOptions.of(written)
    refuse_one_place(("the suite", suite), ("the baseline", against), ("--ledger", ledger), *outputs.files)
    outputs.refuse_existing()
    chosen = load_suite(suite).only(names)
    accepted = read_baseline(against)
    book = None if no_ledger else _opened(ledger)
    try:
        with signals_as_exits(), announced(chosen, verbosity) as announce:
            night = Night(
                suite=chosen,
                baseline=accepted,
                baseline_path=against,
                probe=gate_probe(),
                home=home_of(suite),
                variables=told_variables(own_environment()),
                unwatched=() if names else accepted.beyond(chosen.names),
                jobs=jobs,
                strict=strict,
                stands_at=standings(),
                announce=announce,
            ).run()
        if bisect and night.exit_code:
            from oomscope.cli.terminal.progress import live_progress_of
            from oomscope.gate.culprit import Searching, with_culprits

            reporter = partial(live_progress_of, verbosity, answers_here=False)
            how = Searching(book=book, reporter=reporter, jobs=jobs, state=state)
            night = _with_places(night, chosen)
            keep_outputs(night, outputs, keep=_keeping(book, night))
            night = with_culprits(night, chosen, how)
        night = _with_places(night, chosen)
        return write_outputs(night, outputs, as_json=as_json, keep=_keeping(book, night))
    except InterruptedNight as stop:
        night = _with_places(stop.night, chosen)
        write_outputs(night, outputs, as_json=as_json, keep=_keeping(book, night))
        remark("oomscope: interrupted; what was measured until then is kept")
        return stop.exit_code
    finally:
        if book is not None:
            book.close()


def _with_places(night: GateResult, suite: Suite) -> GateResult:
    try:
        return with_places(night, suite)
    except Exception:  # noqa: BLE001 - a defect here hides no status
        remark(f"oomscope: {internal_error()}")
        return night


def _keeping(book: Ledger | None, night: GateResult) -> Callable[[], object] | None:
    return None if book is None else partial(book.put, night)


def _opened(path: Path | None) -> Ledger:
    from oomscope.gate.ledger.ledger import Ledger

    return Ledger(ledger_path(path))
