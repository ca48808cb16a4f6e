"""The skill file names commands and keys that there are."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields

import click
import pytest

from oomscope.cli.bisect.command import SearchGroup
from oomscope.cli.main import cli
from oomscope.report.exports.summary import Summary
from tests.docs.blocks import ROOT

SKILL = (ROOT / "docs" / "skill" / "SKILL.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*?) \| `oomscope (.*?)` \|$", SKILL, re.MULTILINE)


def parse(words: list[str]) -> None:
    """Parse a command line as the program does, and run nothing."""
    context = cli.make_context("oomscope", [], resilient_parsing=True)
    command: click.Command | None = cli
    while isinstance(command, click.Group) and not isinstance(command, SearchGroup):
        name, *words = words
        command = command.get_command(context, name)
    assert command is not None, words
    command.make_context(name, words, parent=context)


@pytest.mark.parametrize(("question", "line"), ROWS)
def test_commands_parse_and_have_the_options(question: str, line: str) -> None:
    words = shlex.split(line)
    if question.endswith("*"):
        place = words.index("--") if "--" in words else len(words)
        words[place:place] = ["--json", "--summary"]
    parse(words)


def test_every_question_has_a_command() -> None:
    assert len(ROWS) == len(re.findall(r"^\| [A-Z].*\? ", SKILL, re.MULTILINE)) > 10


def test_keys_are_those_of_a_summary() -> None:
    named = set(re.findall(r"`(\w+)`", SKILL.partition("| question")[0]))
    assert named <= {field.name for field in fields(Summary)}
