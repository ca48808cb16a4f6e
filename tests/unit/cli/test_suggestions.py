"""A mistyped command, option or file is answered with the one that may be meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.cli.terminal.hints import name_nearest_file
from oomscope.errors import InputError


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("prob", "No such command 'prob'; did you mean probe?"),
        ("exlain a.pickle", "No such command 'exlain'; did you mean explain?"),
        ("version", "No such command 'version'; did you mean --version?"),
        ("gate rn", "No such command 'rn'; did you mean run?"),
        ("config chek", "No such command 'chek'; did you mean check?"),
        ("bisect resume --staet x", "No such option '--staet'; did you mean --state?"),
        ("explain --limt 80GiB a", "No such option '--limt'; did you mean --limit?"),
        ("explain --jsn a", "No such option '--jsn'; did you mean --json?"),
        ("probe --set a=b", "No such option '--set'; see oomscope probe --help"),
        ("-V", "No such option '-V'; see oomscope --help"),
        ("zzz", "No such command 'zzz'; see oomscope --help"),
    ],
)
def test_one_command_or_option_is_named(capsys, typed: str, said: str) -> None:
    assert run(typed.split()) == 2
    assert capsys.readouterr().err == f"oomscope: {said}\n"


@pytest.mark.parametrize("words", [["explain"], ["replay"], ["probe"], ["config", "check"], ["gate", "run"]])
def test_the_file_of_nearly_that_name_is_named(capsys, tmp_path: Path, words: list[str], monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "rank-0.yaml").touch()
    assert run([*words, "snapshots/rnk-0.yaml"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean snapshots/rank-0.yaml?\n")


def test_the_harness_of_nearly_that_name_is_named(capsys, tmp_path: Path) -> None:
    (tmp_path / "harness.py").touch()
    assert run(["probe", "--harness", str(tmp_path / "harnes.py")]) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {tmp_path / 'harness.py'}?\n")


def test_the_branch_of_nearly_that_name_is_named(capsys, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "Begin"], cwd=tmp_path, check=True)
    assert run(["bisect", "main..mian", "--command", "true", "--repo", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("mian: no such commit; did you mean main?\n")
    assert run(["bisect", "main..v7", "--command", "true", "--repo", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("v7: no such commit; give a commit, tag or branch\n")


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("cannot read: Permission denied", "s.pickel"),
        ("No such file or directory", "else.yaml"),
        ("No such file or directory", "t.pickle"),
    ],
)
def test_other_mistakes_and_other_names_are_left_alone(tmp_path: Path, message: str, name: str) -> None:
    (tmp_path / "s.pickle").touch()
    error = InputError(message, where=str(tmp_path / name), remedy="as before")
    name_nearest_file(error)
    assert error.remedy == "as before"


def test_a_folder_that_is_not_there_suggests_nothing(tmp_path: Path) -> None:
    error = InputError("No such file or directory", where=str(tmp_path / "no" / "a.yaml"), remedy="as before")
    name_nearest_file(error)
    assert error.remedy == "as before"
