"""Draws the parts of a report into one self-contained HTML page, everything in it escaped.

Styles and charts are inside and nothing is fetched. A page may carry scripts of this package only, named by their hash
in its security policy: nothing else can run, whatever a file name or a function that it shows may contain. A page
that is too large shows less of each table and picture until it fits.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import oomscope
from oomscope.printable import printable
from oomscope.report.parts import Column, Report, Row, Table, Value, cut
from oomscope.units import MiB

SEARCHED_FROM: Final = 6
"""Rows from which a table has a box to search it."""
LONG: Final = 24
"""Letters from which a cell is prose, whose column stays readable on a narrow screen."""
LARGEST: Final = MiB
"""Bytes of a page."""
ROWS_SHOWN: Final = 2000
"""Rows of a table; those beyond are one row."""
FEWEST: Final = 5
"""Least rows shown of a table, however little room there is."""
SHARES: Final = tuple(2.0**-halvings for halvings in range(8))
"""Shares of full detail, tried in this order until the page fits."""


def fitting(page: Callable[[float], str], largest: int | None = None) -> str:
    """Return ``page`` of the largest share of its detail with which it fits; of the smallest one, where none does."""
    text = ""
    for share in SHARES:
        text = page(share)
        if len(text.encode()) <= (largest or LARGEST):
            break
    return text


def render(
    report: Report, *scripts: str, title: str, share: float = 1.0, versions: dict[str, str] | None = None
) -> str:
    """Return the page of ``report``, which runs ``scripts`` of this package beside the one that sorts tables.

    A table has a ``share`` of its rows at most. The last line names the ``versions`` of what was measured with.
    """
    most = max(FEWEST, int(share * ROWS_SHOWN))
    folder = resources.files("oomscope.report.html").joinpath("templates")
    script = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.js", *scripts))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            parts=[cut(part, most, "row") if isinstance(part, Table) else part for part in report],
            title=title,
            version=oomscope.__version__,
            versions=versions or {},
            script=Markup(script),  # noqa: S704 - files of this package, with nothing filled in
            hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            searched_from=SEARCHED_FROM,
        )
    )


def _harmless(value: Any) -> Any:
    """Return what a template prints: names and messages of other people's without the control characters in them."""
    return printable(value) if isinstance(value, str) else value


def _words(text: str) -> Markup:
    """Return ``text`` for a page; letters of other scripts keep their direction to themselves."""
    shown = escape(printable(text))
    return shown if text.isascii() else Markup("<bdi>%s</bdi>") % shown


def _cells(columns: Sequence[Column], row: Row) -> Markup:
    """Return the cells of a row, with the numbers by which a script sorts and sums.

    They are filled in by ``%``, which takes a third of the time of ``format``: a page has tens of thousands of them.
    """
    return Markup("").join(_cell(column, value) for column, value in zip(columns, row, strict=True))


def _cell(column: Column, value: Value) -> Markup:
    cell = column.cell(value)
    if span := cell.span:
        style = f"left:{100 * span.start:.2f}%;width:{100 * (span.end - span.start):.2f}%"
        drawn = Markup('<span class="bar %s" style="%s"></span>') % (span.tone, style)
        shown = drawn if span.end > span.start else Markup("")
        return Markup('<td class="bars"><span class="rail">%s</span></td>') % shown
    classes = ["number"] if column.is_number else ["place"] if column.kind == "code" else []
    if not classes and len(cell.text) > LONG:
        classes = ["long"]
    text, tag = _words(cell.text), "code" if column.kind == "code" else "span"
    if column.kind == "category" and cell.tone:
        text = Markup('<span class="swatch %s">%s</span>') % (cell.tone, text)
    elif cell.text and (tag == "code" or cell.title):
        title = Markup(' title="%s"') % printable(cell.title) if cell.title else ""
        text = Markup("<%s%s>%s</%s>") % (tag, title, text, tag)
    if cell.link:
        text += Markup(' <a href="%s" rel="noreferrer" aria-label="see the line">↗</a>') % cell.link
    if cell.details:
        caption, *lines = map(_words, cell.details)
        frames = Markup("").join(Markup("<li><code>%s</code></li>") % line for line in lines)
        opened = Markup("<p>%s</p><ol>%s</ol>") % (caption, frames)
        text = Markup('<details class="stack"><summary>%s</summary>%s</details>') % (text, opened)
    if cell.tone and column.kind != "category":
        classes.append(cell.tone)
    attributes = Markup(' class="%s"') % " ".join(classes) if classes else Markup("")
    if cell.number is not None:
        name = "bytes" if column.kind in {"size", "change"} else "value"
        signed = " data-signed" if column.kind == "change" else ""
        attributes += Markup(' data-%s="%s"%s') % (name, cell.number, signed)
    return Markup("<td%s>%s</td>") % (attributes, text)


@cache
def _environment() -> Environment:
    """Return what fills the template; it keeps it compiled."""
    environment = Environment(
        loader=PackageLoader("oomscope.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.globals.update(words=_words, cells=_cells)
    environment.tests["kind"] = lambda part, name: type(part).__name__ == name
    return environment
