"""Reports as they are printed, for the tests of every report."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from oomscope.report.parts import Report
from oomscope.report.text.console import show


def printed(report: Report | RenderableType, width: int = 120) -> str:
    """Return what a pipe gets."""
    file = io.StringIO()
    show(Console(file=file, width=width, highlight=False, emoji=False, markup=False), report)
    return file.getvalue()


def folded(report: Report | RenderableType, width: int = 120) -> str:
    """Return the same with one blank between words."""
    return " ".join(printed(report, width).split())


def on_terminal(report: Report | RenderableType, width: int) -> list[str]:
    """Return the lines on a terminal of some width, without colours."""
    file = io.StringIO()
    plain = Console(file=file, width=width, force_terminal=True, color_system=None, highlight=False, markup=False)
    show(plain, report)
    return file.getvalue().splitlines()
