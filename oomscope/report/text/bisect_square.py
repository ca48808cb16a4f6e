"""The square of old and new code with old and new configuration, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.results.sections import CodeVsConfig, Corner
from oomscope.report import bisect_sentences
from oomscope.report.sentences import known_size
from oomscope.report.text.layout import section, table
from oomscope.units import format_size


def square_sections(result: BisectResult) -> Iterator[RenderableType]:
    """Yield the corners where both axes were walked, and the configuration's part beside the commit's."""
    if result.square is None:
        return
    yield section("Code and configuration", corner_table(result.square))
    if result.also is not None:
        keys = table("Key", "Good", "Bad", "By itself")
        for change in result.also.keys:
            keys.add_row(change.key, str(change.good), str(change.bad), bisect_sentences.delta_text(change.delta))
        yield section(f"What of {result.square.path} has a part in it", keys)


def corner_table(square: CodeVsConfig) -> Table:
    """Return a row for each corner, and what code and configuration bring only together."""
    rows = table("Code", "Configuration", "", ">Requested", ">Reserved", "Why")
    for corner in (square.old_old, square.new_old, square.old_new, square.new_new):
        rows.add_row(
            bisect_sentences.short_hash(corner.code),
            bisect_sentences.short_hash(corner.config),
            corner.answer.value,
            *_sizes(corner),
            corner.reason,
        )
    if square.interaction is not None:
        rows.add_section()
        sizes = (square.interaction.requested_bytes, square.interaction.reserved_bytes)
        rows.add_row("only together", "", "", *(known_size(size, signed=True) for size in sizes), "")
    return rows


def _sizes(corner: Corner) -> tuple[str, str]:
    if corner.bytes is None:
        return "", ""
    return format_size(corner.bytes.requested_bytes), known_size(corner.bytes.reserved_bytes)
