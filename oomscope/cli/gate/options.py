"""Options and files that the commands of the gate share: suite, baseline, ledger, results of nights, and the probe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.options import FILE, Options, option
from oomscope.cli.terminal.output import Files
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from oomscope.gate.night.result import CaseResult, GateResult
    from oomscope.gate.night.run import Announce
    from oomscope.gate.suite.suite import Suite
    from oomscope.probe.job import ProbeJob
    from oomscope.probe.result import ProbeResult
    from oomscope.probe.tuning.variants import Probe


MOST_RESULT_BYTES = 1024**3
"""Most bytes of a JSON document that is read back."""

suite_argument = click.argument("suite", type=FILE, metavar="SUITE.yaml")
baseline_option = click.option(
    "--baseline", type=FILE, metavar="FILE", help="The accepted values (default: SUITE.baseline.yaml beside the suite)."
)
case_option = click.option("--case", "names", multiple=True, metavar="NAME", help="Only this case; may be repeated.")
ledger_option = click.option(
    "--ledger",
    type=FILE,
    metavar="FILE",
    help="Where all nights are kept (default: $XDG_STATE_HOME/oomscope/gate.sqlite).",
)


def ledger_path(given: Path | None) -> Path:
    """Return the ledger's file: the one given, else the user's own."""
    from oomscope.gate.ledger.ledger import default_ledger

    try:
        return given or default_ledger()
    except RuntimeError:  # raised by pathlib
        raise UsageError("no home directory to keep a ledger in", remedy="give --ledger FILE") from None


def read_night(path: Path) -> GateResult:
    """Return the night that ``oomscope gate run`` wrote to ``path``.

    Raises:
        InputError: it cannot be read, or is no result of the gate.
    """
    import json

    from oomscope.gate.night.result import GateResult

    remedy = "give a file that oomscope gate run --json wrote"
    try:
        if path.stat().st_size > MOST_RESULT_BYTES:
            raise InputError("is larger than any result of the gate", where=str(path), remedy=remedy)
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), remedy=remedy) from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON", where=str(path), remedy=remedy) from None
    return GateResult.from_json(document, where=str(path))


def gate_probe() -> Probe:
    """Return the probe of a gate: warm where it can be, each with a card for itself where there are any."""
    from oomscope.bisect.run.runner import Cards, visible_cards
    from oomscope.probe.machine.environment import own_environment
    from oomscope.probe.tuning.variants import launched

    cards = Cards(visible_cards(own_environment()))

    def probe(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        with cards.reserved(job) as reserved:
            return launched(reserved, stop)

    return probe


@contextmanager
def announced(suite: Suite, verbosity: str | None) -> Iterator[Announce]:
    """Yield a function that shows each case of ``suite`` as it is done."""
    with shown_progress(suite.path.name, verbosity) as ticker:
        ticker.stage("case", 0, len(suite.cases))

        def show(done: int, total: int, case: CaseResult) -> None:
            reason = f", {case.reason}" if case.reason else ""
            ticker.line(f"{done} of {total}: {case.name}: {case.status}{reason}")
            ticker.stage("case", done, total)

        yield show


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """The files of a night."""

    result: Path | None = option("--result", type=FILE, metavar="FILE", help="Write the JSON document to FILE as well.")
    junit: Path | None = option(
        "--junit", type=FILE, metavar="FILE", help="Write JUnit XML, which CI systems show case by case."
    )
    html: Path | None = option("--html", type=FILE, metavar="FILE", help="Write the night as one offline HTML page.")
    step_summary: Path | None = option(
        "--step-summary",
        type=FILE,
        metavar="FILE",
        help="Write a summary in Markdown (default: appended to $GITHUB_STEP_SUMMARY where that is set).",
    )
    comment: Path | None = option(
        "--comment", type=FILE, metavar="FILE", help="Write the text of a comment on a pull request."
    )
    annotations: bool = option(
        "--annotations", is_flag=True, help="Print annotations for GitHub Actions to standard error."
    )
    force: bool = option("--force", is_flag=True, help="Overwrite files that exist.")

    @property
    def places(self) -> Files:
        """The files by option."""
        names = ("result", "junit", "html", "step_summary", "comment")
        return Files({f"--{name.replace('_', '-')}": getattr(self, name) for name in names})
