"""The examples of ``docs/explain.md`` are what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.snapshot.inferring.category_rules import Confidence

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ oomscope (.+)\n((?:.*\n)+?)```", PAGE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_is_what_is_printed(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(command.split()) == 0
    printed = capsys.readouterr().out
    if shown.endswith("\n…\n"):
        assert printed.startswith(shown.removesuffix("…\n"))
    else:
        assert printed == shown


@pytest.mark.parametrize("level", [each for each in Confidence if each is not Confidence.NONE])
def test_every_confidence_is_explained(level: Confidence) -> None:
    assert f"| `{level.label}` |" in PAGE
