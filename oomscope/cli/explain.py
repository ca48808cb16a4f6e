"""``oomscope explain``: why a recorded job ran out of memory, or what room it has, from its snapshot file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oomscope.cli.options import FILE, Size, json_option
from oomscope.cli.output import print_json, print_report
from oomscope.errors import ExitCode, UsageError


@click.command()
@click.argument("file", type=FILE, metavar="FILE|DIR")
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Explain this device only (default: all).")
@click.option("--limit", type=Size(), metavar="SIZE", help="Judge against a card with SIZE bytes in all.")
@click.option("--gpu", metavar="NAME", help="Judge against a real card, such as h100-80gb or a100-40gb.")
@click.option("--non-torch", type=Size(), metavar="SIZE", help="Bytes of that card outside PyTorch (default: none).")
@click.option("--torch-version", metavar="V", help="Whose allocator's rules count (default: the file's, or newest).")
@click.option("--top", type=click.IntRange(min=1), default=8, metavar="N", help="Lines and modules shown (default: 8).")
@json_option
def explain(*, file: Path, as_json: bool, top: int, **options: Any) -> int:
    """Say what kind of OOM a snapshot shows and what would cure it, or what room there is; and what the bytes are.

    FILE is a memory snapshot of any torch since 2.0 (torch.cuda.memory._dump_snapshot), DIR a folder with one file a
    rank.
    """
    from oomscope.snapshot.explain import explain as explained
    from oomscope.snapshot.load import load_snapshot

    found = explained(load_snapshot(file), file=str(file), **_arguments(**options))
    if as_json:
        print_json(found.to_json())
        return ExitCode.OK
    from oomscope.report.explain_text import explain_report

    print_report(explain_report(found, top=top))
    return ExitCode.OK


def _arguments(
    *, device: int | None, limit: str | None, gpu: str | None, non_torch: str | None, torch_version: str | None
) -> dict[str, Any]:
    """Return what the options say, as :func:`oomscope.snapshot.explain.explain` takes it.

    Raises:
        UsageError: two cards are named, or memory outside PyTorch of none.
    """
    from oomscope.units import parse_size

    if limit is not None and gpu is not None:
        raise UsageError(f"both --limit {limit} and --gpu {gpu}", remedy="name one card")
    if non_torch is not None and limit is None and gpu is None:
        raise UsageError("--non-torch without a card", remedy="give --limit SIZE or --gpu NAME as well")
    total = None if limit is None else parse_size(limit)
    if gpu is not None:
        from oomscope.probe.gpus import find_gpu

        total = find_gpu(gpu).total_bytes
    return {
        "device": device,
        "limit": total,
        "non_torch": parse_size(non_torch or 0),
        "torch_version": torch_version,
    }
