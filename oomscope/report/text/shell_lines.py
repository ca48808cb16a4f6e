"""Shell commands in the width of a terminal: broken at their options with a backslash, which a shell joins.

A word is never broken, whatever is quoted in it; one that is wider than the terminal stands on a line of its own.
Where there is no terminal a command is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+""", re.DOTALL)
_INDENT = 2
_CONTINUED = " \\"


@dataclass(frozen=True)
class ShellCommand:
    """A command to paste, set in from the sentence above it."""

    command: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = None if options.no_wrap else options.max_width - _INDENT
        for line in shell_lines(self.command, width):
            yield Text(f"{' ' * _INDENT}{line}", no_wrap=True, overflow="ignore")


def shell_lines(command: str, width: int | None) -> list[str]:
    """Return ``command`` in lines of at most ``width`` characters, as far as its words are no wider; whole for None."""
    if width is None or len(command) <= width or "\n" in command:
        return [command]
    lines = [""]
    for part in _parts(command, width - _INDENT - len(_CONTINUED)):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width - len(_CONTINUED):
            lines[-1] += _CONTINUED
            lines.append(" " * _INDENT + part)
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


def _parts(command: str, width: int) -> Iterator[str]:
    """Yield what stays on one line: words, and options with their values where these fit beside each other."""
    option = ""
    for word in _WORD.findall(command):
        if option and not word.startswith("-") and len(option) + 1 + len(word) <= width:
            yield f"{option} {word}"
            option = ""
            continue
        if option:
            yield option
        option = word if word.startswith("-") else ""
        if not option:
            yield word
    if option:
        yield option
