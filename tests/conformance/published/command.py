"""The command: which rows are run by what, in which order."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import comparing, liger_rows, peft_rows, running
from .comparing import Outcome, Verdict
from .exclusions import reason_to_exclude
from .mechanisms import explained
from .printing import HEADINGS, LINE, closing, line_of
from .rows import Row, read_rows
from .running import Measured, Sources


def outcomes(rows: Sequence[Row], sources: Sources) -> Iterator[Outcome]:
    """Yield what becomes of each row: first the excluded ones, then Liger's and PEFT's as they are measured."""
    included = []
    for row in rows:
        reason = reason_to_exclude(row)
        if reason is None:
            included.append(row)
        else:
            yield comparing.excluded(row, reason)
    yield from _liger([row for row in included if row.repository == liger_rows.REPOSITORY], sources)
    yield from _peft([row for row in included if row.repository == peft_rows.REPOSITORY], sources)


def _liger(rows: Sequence[Row], sources: Sources) -> Iterator[Outcome]:
    if not rows:
        return
    for script, cases in liger_rows.scripts_of(sources.clone(liger_rows.REPOSITORY), rows).items():
        measured = running.run_liger(sources, script, cases)
        for case in cases:
            size = _bytes(measured, case.key)
            listed = bool(measured.get(case.key, {}).get("listed", True))
            if isinstance(size, int):
                yield explained(comparing.peak(case.row, size), listed=listed)
            else:
                yield explained(comparing.failed(case.row, size), listed=listed)


def _peft(rows: Sequence[Row], sources: Sources) -> Iterator[Outcome]:
    all_runs = peft_rows.runs_of(rows)
    for runs, its_rows in all_runs.items():
        experiments = sorted({peft_rows.experiment_of(row) for row in its_rows})
        measured = running.run_peft(sources, runs, experiments)
        reference = _bytes(measured, (peft_rows.REFERENCE,))
        recorded = peft_rows.reference_bytes(sources.clone(peft_rows.REPOSITORY), runs, all_runs)
        for row in its_rows:
            size = _bytes(measured, (peft_rows.experiment_of(row),))
            if isinstance(size, int) and isinstance(reference, int):
                yield explained(comparing.state(row, row.recorded - recorded, size - reference))
            else:
                yield comparing.failed(row, str(size if isinstance(reference, int) else reference))


def _bytes(measured: Measured, key: tuple[str, ...]) -> int | str:
    """Return what was measured, or why there is nothing."""
    result = measured.get(key, {"error": "the program did not come to this case"})
    size = result.get("bytes")
    return size if isinstance(size, int) else str(result.get("error"))


def main(argv: Sequence[str], doc: str) -> int:
    """Print the table of a file; return 0 only where no row is off or failed without a reason."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in what the table calls them")
    parser.add_argument(
        "--sources", type=Path, default=Path("public-rows"), metavar="FOLDER", help="clones, and what was measured"
    )
    options = parser.parse_args(argv)
    rows = [row for row in read_rows(options.file) if options.only in row.label]
    listed = []
    print(LINE.format(*HEADINGS))
    for outcome in outcomes(rows, Sources(options.sources.resolve())):
        listed.append(outcome)
        if outcome.verdict is not Verdict.EXCLUDED:
            print(line_of(outcome), flush=True)
    print(*closing(listed), sep="\n")
    unexplained = [one for one in listed if one.verdict in (Verdict.OFF, Verdict.FAILED) and not one.reason]
    return 1 if unexplained else 0
