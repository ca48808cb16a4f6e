"""``oomscope.explain("snapshot.pickle")`` in a notebook: the page of ``oomscope explain --html``, and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from markupsafe import Markup

from oomscope.errors import UsageError
from oomscope.report.commands.explain import explain_report
from oomscope.report.exports.dataframes import tables_of
from oomscope.report.html.pages import explain_page
from oomscope.report.redact import Level, redacted
from oomscope.report.text.console import result_console, show
from oomscope.snapshot.explain.drawing import Drawing, draw
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.virtual.cards import named_card

FRAME = (
    '<iframe title="oomscope explain" sandbox="allow-scripts" srcdoc="{}" '
    'style="width:100%;height:48rem;border:1px solid #8884;resize:vertical"></iframe>'
)
"""Frame with the page as a document of its own, isolated from the notebook and its style."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Explained:
    """A snapshot file, explained. At the end of a cell it shows its page; ``print`` shows its eight lines."""

    found: Explanation | RankSet
    drawings: tuple[Drawing, ...]

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of ``--csv`` by name: ``categories``, ``sites``, ``modules``, ``tried``, ``pins``, ``timeline``;
        of a folder ``ranks``.
        """
        return tables_of(self.found)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope explain --json``."""
        return self.found.to_json()

    def page(self) -> str:
        """Return the page of ``oomscope explain --html``."""
        return explain_page(self.found, self.drawings)

    def _repr_html_(self) -> str:
        return FRAME.format(Markup.escape(self.page()))

    def __repr__(self) -> str:
        text = StringIO()
        show(result_console(text), explain_report(self.found, full=False))
        return text.getvalue().rstrip()


def explain(
    path: str | PathLike[str],
    *,
    device: int | None = None,
    limit: str | int | None = None,
    gpu: str | None = None,
    non_torch: str | int | None = None,
    torch_version: str | None = None,
    redact: Level | None = None,
) -> Explained:
    """Explain the snapshot ``path``, or a folder with one file a rank.

    The arguments are the options of ``oomscope explain``; a size is a text such as ``"80 GiB"``, or bytes.

    Raises:
        SnapshotError: the file cannot be read or trusted.
        UsageError: the file knows no such device, two cards are named, memory outside PyTorch is given without a card
            or leaves nothing of it, or ``redact`` is no level.
    """
    if redact is not None and redact not in get_args(Level):
        raise UsageError(f"redact={redact!r}: no such level", remedy=f"give one of {', '.join(get_args(Level))}")
    total, outside = named_card(limit, gpu, non_torch)
    found, analyses = explain_path(
        Path(fspath(path)),
        device=device,
        limit=total,
        non_torch=outside,
        torch_version=torch_version,
    )
    drawings = tuple(map(draw, analyses))
    if redact is not None:
        found, drawings = redacted((found, drawings), redact)
    return Explained(found=found, drawings=drawings)
