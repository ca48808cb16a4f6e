"""``oomscope diff --align``: two recordings of one program, allocation by allocation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.options_progress import Telling
from oomscope.cli.output import print_json, print_report
from oomscope.cli.progress import shown_progress
from oomscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from oomscope.report.redact import Level
    from oomscope.snapshot.read.limits import Limits


def refuse_beside_align(given: Mapping[str, object]) -> None:
    """Refuse options that are about the peaks by line, by their names.

    Raises:
        UsageError: one of them was given.
    """
    if names := [name for name, value in given.items() if value]:
        raise UsageError(f"{names[0]} with --align", remedy="leave one of them out: --align prints one table")


def show_aligned(
    before: Path,
    after: Path,
    *,
    device: int | None,
    limits: Limits | None,
    redact: Level | None,
    top: int,
    telling: Telling,
    as_json: bool,
) -> ExitCode:
    """Align the two files and print what differs.

    Raises:
        UsageError: one of them is a folder.
        InputError: they have no device in common, or are too different to be of the same program.
        SnapshotError: a file cannot be read or trusted.
    """
    from oomscope.snapshot.compare.diff_paths import align_paths

    with shown_progress(f"{before} and {after}", telling, is_all=False) as ticker:
        aligned = align_paths(before, after, device=device, limits=limits, announce=ticker.stage)
    if redact is not None:
        from oomscope.report.redact import redacted

        aligned = redacted(aligned, redact)
    if as_json:
        print_json(aligned.to_json())
    else:
        from oomscope.report.text.align import align_report

        print_report(align_report(aligned, shown=top))
    return ExitCode.OK
