from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.build.commands import commands_page, exit_codes_page
from oomscope.cli.main import cli
from oomscope.errors import GRAVITY, ExitCode

DOCS = Path(__file__).resolve().parents[3] / "docs"


def commands(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            child = context.command.get_command(context, name)
            yield from commands(click.Context(child, info_name=name, parent=context))


EVERY = list(commands(cli.make_context("oomscope", [], resilient_parsing=True)))


@pytest.mark.parametrize(("name", "page"), [("cli.md", commands_page), ("exit-codes.md", exit_codes_page)])
def test_pages_are_current(name: str, page) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == page(), "run `make docs`"


@pytest.mark.parametrize("context", EVERY, ids=lambda context: context.command_path)
def test_every_command_and_option_is_documented(context: click.Context) -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"## {context.command_path}\n" in page
    assert context.command.help
    for parameter in context.command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert all(option in page for option in parameter.opts)


@pytest.mark.parametrize("context", EVERY, ids=lambda context: context.command_path)
def test_help_fits_a_narrow_terminal(context: click.Context, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = click.Context(context.command, info_name=context.info_name, parent=context.parent, terminal_width=78)
    text = context.command.get_help(narrow)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "..." not in text.partition("Commands:")[2], "a summary is cut off"
    words = {word for line in str(context.command.help).splitlines() for word in line.split()}
    assert {word for word in words if "-" in word and word not in text} == set(), "a word is broken"


@pytest.mark.parametrize("context", EVERY[1:], ids=lambda context: context.command_path)
def test_every_command_answers_in_json(context: click.Context) -> None:
    if not isinstance(context.command, click.Group):
        assert any("--json" in parameter.opts for parameter in context.command.params)


def test_every_exit_code_has_a_meaning_and_a_gravity() -> None:
    page = exit_codes_page()
    assert all(f"| {code.value} | {code.name} | " in page for code in ExitCode)
    assert sorted(GRAVITY) == sorted(ExitCode)
