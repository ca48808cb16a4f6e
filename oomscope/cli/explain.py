"""``oomscope explain``: why a recorded job ran out of memory, or what room it has, from its snapshot file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.options import (
    FILE,
    card_options,
    csv_option,
    force_option,
    full_option,
    json_options,
    progress_options,
    redact_option,
    snapshot_limits_options,
    torch_version_option,
)
from oomscope.cli.terminal.output import EXPLAIN_TABLES, Files, Form, late, offer_more, print_document, print_report
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ExitCode, gravest

if TYPE_CHECKING:
    from oomscope.report.redact import Level
    from oomscope.snapshot.explain.drawing import Drawing
    from oomscope.snapshot.read.limits import Limits


@click.command(short_help="Explain a snapshot: the kind of OOM, and its cure.")
@click.argument("file", type=FILE, metavar="FILE|DIR")
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Explain this device only (default: all).")
@card_options
@torch_version_option
@click.option("--top", type=click.IntRange(min=1), default=8, metavar="N", help="Lines of code shown (default: 8).")
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page, with pictures.")
@click.option("--png", type=FILE, metavar="FILE", help="Write timeline and segment map as a picture (plots extra).")
@click.option("--perfetto", type=FILE, metavar="FILE", help="Write a trace for ui.perfetto.dev (or chrome://tracing).")
@click.option("--speedscope", type=FILE, metavar="FILE", help="Write the live bytes by stack for speedscope.app.")
@click.option("--folded", type=FILE, metavar="FILE", help="Write folded stacks of the peak, for flamegraph.pl.")
@full_option
@csv_option
@redact_option
@force_option
@snapshot_limits_options
@progress_options
@json_options
def explain(
    *,
    file: Path,
    device: int | None,
    limit: str | None,
    gpu: str | None,
    non_torch: str | None,
    torch_version: str | None,
    top: int,
    html: Path | None,
    png: Path | None,
    perfetto: Path | None,
    speedscope: Path | None,
    folded: Path | None,
    full: bool,
    tables: Path | None,
    redact: Level | None,
    force: bool,
    limits: Limits,
    verbosity: str | None,
    form: Form | None,
) -> ExitCode:
    """Explain a snapshot: the kind of OOM and its cure, or the headroom, and what holds the memory.

    FILE is a memory snapshot of any torch since 2.0 (torch.cuda.memory._dump_snapshot), DIR a folder with one file a
    rank: the ranks are compared, and the worst is explained.

    \b
    oomscope explain snapshot.pickle
    oomscope explain snapshot.pickle --gpu a100-40gb
    oomscope explain snapshot.pickle --html report.html
    oomscope explain snapshots/
    """
    drawn = {"--html": html, "--png": png, "--perfetto": perfetto, "--speedscope": speedscope, "--folded": folded}
    files = Files({**drawn, "--csv": tables}, EXPLAIN_TABLES)
    files.refuse(("what is read", file), force=force)
    from oomscope.snapshot.explain.explain_path import explain_path
    from oomscope.virtual.cards import named_card

    total, outside = named_card(limit, gpu, non_torch)
    drawings: tuple[Drawing, ...] = ()
    with shown_progress(str(file), verbosity, is_all=False) as ticker:
        explained = explain_path(
            file,
            device=device,
            limit=total,
            non_torch=outside,
            torch_version=torch_version,
            limits=limits,
            announce=ticker.stage,
        )
        found = explained.found
        if any(drawn.values()):
            from oomscope.snapshot.explain.drawing import draw

            ticker.stage("draw")
            drawings = tuple(map(draw, explained.analyses))
    if redact is not None:
        from oomscope.report.redact import redacted

        found, drawings = redacted((found, drawings), redact)
    makes = {
        "--html": late("oomscope.report.html.pages:explain_page", found, drawings),
        "--png": late("oomscope.report.charts.pictures:explain_picture", found, drawings),
        "--csv": late("oomscope.report.exports.dataframes:tables_of", found),
        "--perfetto": late("oomscope.report.exports.traces:perfetto_trace", found, drawings),
        "--speedscope": late("oomscope.report.exports.stack_files:speedscope", found, drawings),
        "--folded": late("oomscope.report.exports.stack_files:folded", found, drawings),
    }
    lost = files.write(makes)
    if form is not None:
        print_document(found, form)
    else:
        from oomscope.report.commands.explain import explain_report

        print_report(explain_report(found, top=top, full=full))
        if not full:
            offer_more()
    return gravest([ExitCode.OK, *lost])
