"""Ctrl-C is one line and exit code 130, however early it comes."""

from __future__ import annotations

import sys

import pytest

from oomscope.cli import entry, main
from oomscope.errors import ExitCode


class Interrupts:
    """A finder during which Ctrl-C is pressed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "oomscope.cli.main":
            raise KeyboardInterrupt


def test_while_it_is_imported(monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "oomscope.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "oomscope: interrupted\n"


def test_before_a_command_has_begun(monkeypatch, capsys) -> None:
    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "named_failures", pressed)
    monkeypatch.setattr(sys, "argv", ["oomscope", "--version"])
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "oomscope: interrupted\n"


def test_else_it_is_the_command_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["oomscope", "nothing-like-it"])
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == ExitCode.USAGE
    assert "No such command" in capsys.readouterr().err
