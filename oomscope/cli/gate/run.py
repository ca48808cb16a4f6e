"""``oomscope gate run``: measure a suite and compare it with its baseline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from oomscope.cli.gate.options import (
    OutputOptions,
    announced,
    baseline_option,
    case_option,
    gate_probe,
    ledger_option,
    ledger_path,
    suite_argument,
)
from oomscope.cli.gate.outputs import write_files, write_outputs
from oomscope.cli.options import FILE, jobs_option, json_options, link_base_option, progress_options
from oomscope.cli.terminal.output import Form, remark


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
@link_base_option
@OutputOptions.add
@progress_options
@json_options
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
    link_base: str | None,
    verbosity: str | None,
    form: Form | None,
    **given: Any,
) -> int:
    """Measure each case of SUITE.yaml and compare it with the baseline; what is worse is measured again.

    \b
    oomscope gate run ci/memory.yaml
    oomscope gate run ci/memory.yaml --jobs auto --bisect --result night.json
    oomscope gate run ci/memory.yaml --junit night.xml --html night.html

    Exit codes: 0 green, 1 a confirmed regression, 2 suite or baseline cannot be used, 4 nothing to compare with, 5
    machine unfit, 6 a case cannot be tested, 8 nothing was measured, 9 better than the baseline with --strict.
    """
    from oomscope.bisect.vcs.forge import forge_of
    from oomscope.gate.baseline import load_baseline
    from oomscope.gate.checkouts import commit_finder, home_of, with_places
    from oomscope.gate.ledger.ledger import Ledger
    from oomscope.gate.night.run import InterruptedNight, Night
    from oomscope.gate.suite.identity import baseline_beside
    from oomscope.gate.suite.suite import load_suite
    from oomscope.probe.machine.environment import own_environment, variables_to_repeat
    from oomscope.probe.machine.processes import signals_as_exits

    path, options = baseline or baseline_beside(suite), OutputOptions.of(given)
    read = (("the suite", suite), ("the baseline", path), ("--ledger", ledger))
    options.places.refuse(*read, force=options.force)
    chosen = load_suite(suite).only(names)
    accepted, forge = load_baseline(path), forge_of(suite.parent, link_base)
    open_ledger = None if no_ledger else Ledger(ledger_path(ledger))
    try:
        with signals_as_exits(), announced(chosen, verbosity) as announce:
            night = Night(
                suite=chosen,
                baseline=accepted,
                baseline_path=path,
                probe=gate_probe(),
                home=home_of(suite),
                variables=variables_to_repeat(own_environment()),
                unwatched=() if names else accepted.beyond(chosen.names),
                jobs=jobs,
                strict=strict,
                commit_of=commit_finder(),
                announce=announce,
            ).run()
        night = replace(with_places(night, chosen), forge=forge.base if forge else "")
        if bisect and night.exit_code:
            from oomscope.cli.terminal.progress import live_progress_of
            from oomscope.gate.culprit import SearchSettings, with_culprits

            # a job may be killed during the search, when its time is over
            write_files(night, options, open_ledger, is_announced=False)
            reporter = partial(live_progress_of, verbosity, answers_here=False)
            found = with_culprits(
                night, chosen, SearchSettings(ledger=open_ledger, reporter=reporter, jobs=jobs, state=state)
            )
            night = with_places(found, chosen)
        return write_outputs(night, options, form=form, ledger=open_ledger)
    except InterruptedNight as stop:
        write_outputs(with_places(stop.night, chosen), options, form=form, ledger=open_ledger)
        remark("oomscope: interrupted; what was measured until then is kept")
        return stop.exit_code
    finally:
        if open_ledger is not None:
            open_ledger.close()
