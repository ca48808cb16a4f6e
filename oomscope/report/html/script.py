"""The scripts that pages may carry: files of this package, named by their hash in the page's own security policy.

Nothing else can run in a page, whatever a file name or a function that it shows may contain.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import NamedTuple

from markupsafe import Markup


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
