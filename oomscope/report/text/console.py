"""The consoles that reports and progress are printed to.

On a terminal: colour and the terminal's width. Elsewhere (a pipe, a CI log): plain text, wide enough that tables
keep their rows. ``NO_COLOR`` (https://no-color.org), ``FORCE_COLOR`` and ``COLUMNS`` are honoured, the first before
the second.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult, RichCast
from rich.segment import Segment

from oomscope.printable import not_obeyed, printable
from oomscope.report.parts import Report
from oomscope.report.text.layout import drawn

PLAIN_WIDTH = 120


def result_console(file: TextIO | None = None) -> Console:
    """Return the console for results (standard output, or ``file``)."""
    return _console(file or sys.stdout)


def progress_console() -> Console:
    """Return the console for progress and remarks, on standard error."""
    return _console(sys.stderr)


@dataclass(frozen=True)
class Harmless:
    """A report without the control characters that texts in it may hold; rich's own stay."""

    report: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.report, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def show(console: Console, report: Report | RenderableType) -> None:
    """Print ``report``; where there is no terminal, sentences stay on one line and no line ends in blanks.

    Nothing is cut off at the right: a command that is too long for the terminal is whole when it is copied.
    """
    text = report if isinstance(report, (str, ConsoleRenderable, RichCast)) else drawn(report)
    if console.is_terminal:
        console.print(Harmless(text), crop=False)
        return
    with console.capture() as capture:
        console.print(Harmless(text), soft_wrap=True)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    if os.environ.get("GITHUB_ACTIONS"):
        lines = [not_obeyed(line) for line in lines]
    console.file.write("".join(f"{line}\n" for line in lines))


def _console(stream: TextIO) -> Console:
    plain = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream,
        width=PLAIN_WIDTH if plain else None,
        force_terminal=stream.isatty() if os.environ.get("NO_COLOR") else None,
        force_jupyter=False,  # in a notebook rich adds an output to the cell
        highlight=False,
        emoji=False,
        markup=False,
    )
