from __future__ import annotations

from pathlib import Path

import click
import pytest

from docs.build.commands import commands_page, contexts, exit_codes_page
from oomscope.cli.main import run

DOCS = Path(__file__).resolve().parents[3] / "docs"


EVERY = {context.command_path: context for context in contexts()}


@pytest.mark.parametrize(("name", "page"), [("cli.md", commands_page), ("exit-codes.md", exit_codes_page)])
def test_pages_are_current(name: str, page) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == page(), "run `make docs`"


@pytest.mark.parametrize(("path", "context"), EVERY.items())
def test_every_command_and_option_is_documented(path: str, context: click.Context) -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"## {path}\n" in page
    assert context.command.help
    for parameter in context.command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert all(option in page for option in parameter.opts)


@pytest.mark.parametrize("context", EVERY.values(), ids=EVERY)
def test_help_fits_a_narrow_terminal(context: click.Context, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = click.Context(context.command, info_name=context.info_name, parent=context.parent, terminal_width=78)
    text = context.command.get_help(narrow)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "..." not in text.partition("Commands:")[2], "a summary is cut off"
    words = {word for line in str(context.command.help).splitlines() for word in line.split()}
    assert {word for word in words if "-" in word and word not in text} == set(), "a word is broken"


@pytest.mark.parametrize("path", EVERY)
def test_help_shows_the_usage_of_its_own_command(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path.split()[1:], "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: {path} ")
