"""``oomscope explain``: why a recorded job ran out of memory, or what room it has, from its snapshot file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.card import NamedCard, card_options, named_card
from oomscope.cli.options import FILE, json_option, snapshot_limits_options
from oomscope.cli.output import print_json, print_report
from oomscope.cli.tables import EXPLAIN_TABLES, csv_option, refuse_existing_tables, write_explain_tables
from oomscope.errors import ExitCode

if TYPE_CHECKING:
    from oomscope.snapshot.explanation import Explanation
    from oomscope.snapshot.limits import Limits
    from oomscope.snapshot.rank_set import RankSet


@click.command(short_help="Say what kind of OOM a snapshot shows, and what cures it.")
@click.argument("file", type=FILE, metavar="FILE|DIR")
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Explain this device only (default: all).")
@card_options
@click.option("--torch-version", metavar="V", help="Whose allocator's rules count (default: those that fit the trace).")
@click.option("--top", type=click.IntRange(min=1), default=8, metavar="N", help="Lines of code shown (default: 8).")
@csv_option
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@snapshot_limits_options
@json_option
def explain(
    *,
    file: Path,
    device: int | None,
    limit: str | None,
    gpu: str | None,
    non_torch: str | None,
    torch_version: str | None,
    top: int,
    tables: Path | None,
    force: bool,
    limits: Limits,
    as_json: bool,
) -> ExitCode:
    """Say what kind of OOM a snapshot shows and what would cure it, or what room there is; and what the bytes are.

    FILE is a memory snapshot of any torch since 2.0 (torch.cuda.memory._dump_snapshot), DIR a folder with one file a
    rank: the ranks are compared, and the worst is explained.

    \b
    oomscope explain snapshot.pickle
    oomscope explain snapshot.pickle --gpu a100-40gb
    oomscope explain snapshots/
    """
    refuse_existing_tables(tables, EXPLAIN_TABLES, force=force)
    card = named_card(limit, gpu, non_torch)
    found = (_of_ranks if file.is_dir() else _of_file)(file, device, card, torch_version, limits)
    if as_json:
        print_json(found.to_json())
    else:
        from oomscope.report.explain_text import report

        print_report(report(found, top=top))
    if tables is not None:
        write_explain_tables(tables, found)
    return ExitCode.OK


def _of_file(file: Path, device: int | None, card: NamedCard, torch_version: str | None, limits: Limits) -> Explanation:
    from oomscope.snapshot.explain import explain as explained
    from oomscope.snapshot.load import load_snapshot

    snapshot = load_snapshot(file, limits=limits)
    return explained(snapshot, file=str(file), device=device, torch_version=torch_version, **card._asdict())


def _of_ranks(
    directory: Path, device: int | None, card: NamedCard, torch_version: str | None, limits: Limits
) -> RankSet:
    from oomscope.snapshot.rank_set import explain_ranks

    return explain_ranks(directory, device=device, torch_version=torch_version, limits=limits, **card._asdict())
