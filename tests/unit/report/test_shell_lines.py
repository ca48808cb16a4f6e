"""Commands on narrow terminals: a shell reads the words of the command, however its lines were broken."""

from __future__ import annotations

import io
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from oomscope.report.text.console import show
from oomscope.report.text.layout import ShellCommand, shell_lines

COMMAND = "A=1 oomscope gate run 'ci gate/memory.yaml' --case tiny --case 'two  words --case x' --bisect"


def test_options_stay_beside_their_values() -> None:
    assert shell_lines(COMMAND, 40) == [
        "A=1 oomscope gate run \\",
        "  'ci gate/memory.yaml' --case tiny \\",
        "  --case 'two  words --case x' \\",
        "  --bisect",
    ]


def test_what_fits_is_one_line() -> None:
    assert shell_lines(COMMAND, len(COMMAND)) == [COMMAND]
    assert len(shell_lines(COMMAND, len(COMMAND) - 1)) == 2


@given(words=st.lists(st.text("ab-='\" \\$", max_size=12), min_size=1, max_size=9), width=st.integers(10, 60))
def test_a_shell_reads_the_same_words(words: list[str], width: int) -> None:
    command = shlex.join(words)
    lines = shell_lines(command, width)
    assert shlex.split("\n".join(lines).replace(" \\\n", " ")) == words
    longest = max(len(shlex.quote(word)) for word in words)
    assert max(map(len, lines)) <= max(width, longest + 4)


@pytest.mark.parametrize(("terminal", "lines"), [(True, 3), (False, 1)])
def test_only_a_terminal_has_it_in_lines(terminal: bool, lines: int) -> None:
    console = Console(file=io.StringIO(), width=44, force_terminal=terminal, color_system=None)
    show(console, ShellCommand(COMMAND))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert len(said.splitlines()) == lines
    assert max(map(len, said.splitlines())) <= 44 or not terminal
    assert shlex.split(said.replace("\\\n", "")) == shlex.split(COMMAND)
