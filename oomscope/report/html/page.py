"""What all pages share: one self-contained HTML file each, everything in it escaped, small enough to be attached.

Styles and charts are inside and nothing is fetched. A page may carry scripts of this package only, named by their hash
in its security policy: nothing else can run, whatever a file name or a function that it shows may contain. A page
that is too large shows less of each table and picture until it fits, and says what it left out: rows as one that adds
them up, events as columns that stand for several.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import oomscope
from oomscope.printable import printable
from oomscope.report import bisect_sentences, sentences
from oomscope.units import MiB, format_size

SEARCHED_FROM: Final = 6
"""Rows from which a table has a box to search it."""
LARGEST: Final = MiB
"""Bytes of a page."""
SHARES: Final = tuple(2.0**-halvings for halvings in range(8))
"""Of the detail that a page has where there is room, in the order in which they are tried."""


def fitting(page: Callable[[float], str]) -> str:
    """Return ``page`` of the largest share of its detail with which it fits; of the smallest one, where none does."""
    text = ""
    for share in SHARES:
        text = page(share)
        if len(text.encode()) <= LARGEST:
            break
    return text


class Script(NamedTuple):
    """A script, and how a Content-Security-Policy names it."""

    text: Markup
    hash: str
    """``sha256-…``."""

    @classmethod
    def read(cls, *names: str) -> Script:
        """Return the scripts ``names`` among the templates, as one."""
        folder = resources.files("oomscope.report.html").joinpath("templates")
        text = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return cls(Markup(text), f"sha256-{digest}")  # noqa: S704 - a file of this package, with nothing filled in


def _harmless(value: Any) -> Any:
    """Return what a template prints: names and messages of other people's without the control characters in them."""
    return printable(value) if isinstance(value, str) else value


def render(template: str, script: Script | None = None, **values: Any) -> str:
    """Return the named template of this package, filled with ``values``, everything in them escaped.

    Without a ``script`` the page's policy lets none run.
    """
    return _environment().get_template(template).render(version=oomscope.__version__, script=script, **values)


@cache
def _environment() -> Environment:
    """Return what fills the templates; it keeps them compiled."""
    environment = Environment(
        loader=PackageLoader("oomscope.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.filters["size"] = format_size
    environment.filters["signed_size"] = partial(format_size, signed=True)
    environment.globals.update(sentences=sentences, bisect_sentences=bisect_sentences, SEARCHED_FROM=SEARCHED_FROM)
    return environment
