"""Code in a page: the hunks of a commit and the lines around what grew, with the bytes of each line beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from markupsafe import Markup, escape

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.sections import CodeLine, Excerpt
from oomscope.bisect.vcs.forge import Forge
from oomscope.printable import printable
from oomscope.report.sentences import category_text
from oomscope.units import format_size

Grown: TypeAlias = dict[tuple[str, int, bool], list[SiteGrowth]]
"""Rows by file, number, and whether the line is gone."""
CLASSES = {"+": "added", "-": "removed", " ": ""}


def excerpts(found: Iterable[Excerpt], sites: Sequence[SiteGrowth], forge: Forge | None, commit: str) -> Markup:
    """Return pieces of files of ``commit`` with the bytes of ``sites`` beside their lines, and links to ``forge``."""
    grown: Grown = defaultdict(list)
    for row in sites:
        if row.site is not None:
            grown[row.site.file, row.site.line, not row.after_bytes].append(row)
    return Markup("").join(_excerpt(each, grown, forge, commit) for each in found)


def link(address: str, text: str) -> Markup:
    """Return a link that sends no referrer."""
    return Markup('<a href="{}" rel="noreferrer">{}</a>').format(address, printable(text))


def _excerpt(found: Excerpt, grown: Grown, forge: Forge | None, commit: str) -> Markup:
    first = next((line.number for line in found.lines if line.mark != "-"), None)
    name = escape(printable(found.path))
    if forge is not None and first is not None:
        name = link(forge.line(commit, found.path, first), found.path)
    section = Markup(' <span class="soft">{}</span>').format(printable(found.section)) if found.section else ""
    rows = Markup("").join(_line(line, grown[found.path, line.number, line.mark == "-"]) for line in found.lines)
    return Markup(
        '<p class="file"><code>{}</code>{}</p><div class="scroll"><table class="code">{}</table></div>'
    ).format(name, section, rows)


def _line(line: CodeLine, grown: Sequence[SiteGrowth]) -> Markup:
    sizes = ", ".join(f"{format_size(row.delta_bytes, signed=True)} {category_text(row.category)}" for row in grown)
    tone = "bad" if sum(row.delta_bytes for row in grown) > 0 else "good"
    return Markup(
        '<tr class="{}"><td class="number">{}</td><td><code>{}{}</code></td><td class="{}">{}</td></tr>'
    ).format(
        f"{CLASSES[line.mark]}{' grown' if grown else ''}".strip(),
        line.number,
        line.mark,
        printable(line.text),
        tone,
        sizes,
    )
