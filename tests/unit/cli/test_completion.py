"""TAB completes commands, options, cards, presets, keys, configuration files and the ends of a search."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from oomscope.cli.completion import COMPLETE_VARIABLE
from oomscope.cli.main import cli, run
from tests.unit.bisect.repos import Repo


def offered(words: str, incomplete: str) -> list[str]:
    completion = ShellComplete(cli, {}, "oomscope", COMPLETE_VARIABLE)
    return [item.value for item in completion.get_completions(words.split(), incomplete)]


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    repo = Repo(tmp_path)
    repo.commit("One", {})
    repo.git("tag", "v1")
    (tmp_path / "configs").mkdir()
    for name in ("train.yaml", "configs/a.yaml", "configs/notes.txt"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("words", "incomplete", "names"),
    [
        ("", "pro", ["probe"]),
        ("probe --gpu", "h100", ["h100-80gb", "h100-pcie"]),
        ("probe --preset", "llama3-8", ["llama3-8b"]),
        ("probe", "data.micro", ["data.micro_batch_size="]),
        ("sweep train.yaml", "data.micro", ["data.micro_batch_size="]),
        ("bisect v1..main", "data.micro", ["data.micro_batch_size="]),
        ("config check", "tr", ["train.yaml"]),
        ("probe", "con", ["configs/"]),
        ("probe", "configs/", ["configs/a.yaml"]),
        ("probe", "no/such/", []),
        ("bisect", "re", ["resume"]),
        ("bisect", "ma", ["main"]),
        ("bisect", "v1..", ["v1..main", "v1..v1", "v1..train.yaml", "v1..configs/"]),
        ("bisect", "train.yaml..tr", ["train.yaml..train.yaml"]),
        ("bisect", "--har", ["--harness"]),
        ("bisect v1..main", "--exh", ["--exhaustive"]),
        ("bisect resume", "--dea", ["--deadline"]),
        ("gate run", "--no-l", ["--no-ledger"]),
    ],
)
def test_what_is_offered(words: str, incomplete: str, names: list[str]) -> None:
    assert offered(words, incomplete) == names


def test_outside_of_git_no_end_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").rename(tmp_path / "git")
    assert offered("bisect", "ma") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert COMPLETE_VARIABLE in capsys.readouterr().out
