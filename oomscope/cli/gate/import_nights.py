"""``oomscope gate import``: put nights into a ledger from the JSON documents that the gate wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.gate.options import ledger_option, ledger_path, read_night
from oomscope.cli.options.common import json_option
from oomscope.cli.options.types import FILE
from oomscope.cli.terminal.output import print_json, say
from oomscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from oomscope.gate.night.result import GateResult

SCHEMA_VERSION = 1


@click.command(short_help="Add JSON results to a ledger.")
@click.argument("results", nargs=-1, type=FILE, metavar="RESULT.json...")
@ledger_option
@json_option
def import_command(*, results: tuple[Path, ...], ledger: Path | None, as_json: bool) -> ExitCode:
    """Add the nights of RESULT.json to the ledger, each once; this rebuilds a lost or damaged ledger.

    All files are read before anything is written.

    \b
    oomscope gate import nights/*.json --ledger gate.sqlite
    """
    from oomscope.gate.ledger.ledger import Ledger

    if not results:
        raise UsageError("no results given", remedy="name files that oomscope gate run --result wrote")
    nights = sorted((_numbers_of(read_night(path)) for path in results), key=lambda night: night.started)
    place = ledger_path(ledger)
    with Ledger(place) as book:
        added = sum(book.add(night) for night in nights)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "added": added, "known": len(nights) - added})
    else:
        say(f"{added} added, {len(nights) - added} known before: {place}")
    return ExitCode.OK


def _numbers_of(night: GateResult) -> GateResult:
    """Return a night without its measurements: the ledger keeps none, and those of a year fill the memory."""
    return replace(night, cases=tuple(replace(case, probe=None) for case in night.cases))
