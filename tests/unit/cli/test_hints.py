"""A command line that cannot be meant is answered with the command, option, file or value that may be."""

from __future__ import annotations

import gzip
import pickle
import sys
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.cli.terminal.hints import add_hint
from oomscope.errors import InputError
from tests.unit.bisect.repos import Repo


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
    Repo(tmp_path).commit("Begin", {})
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
    add_hint(error)
    assert error.remedy == "as before"


@pytest.fixture
def files(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("preset: gpt-tiny\n")
    Path("a.yaml.gz").write_bytes(gzip.compress(b"preset: gpt-tiny\n"))
    Path("a.pickle").write_bytes(pickle.dumps([]))
    Path("train.py").write_text("print(1)\n")
    Path("job.log").write_text("epoch 1: loss: 2.3\n")
    Path("y.png").write_bytes(b"\x89PNG\r\n\x1a\n")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("explain a.yaml", "; oomscope probe a.yaml measures a configuration\n"),
        ("replay a.yaml.gz", "; oomscope probe a.yaml.gz measures a configuration\n"),
        (
            "probe a.pickle",
            "a.pickle: not a configuration of oomscope; oomscope explain a.pickle reads memory snapshots\n",
        ),
        (
            "probe job.log",
            "; oomscope config import job.log makes one from the arguments that a job logs or is started with\n",
        ),
        ("probe train.py", "; oomscope probe -- python train.py measures a training program\n"),
        ("gate run a.pickle", "not text: byte 0x80 is not UTF-8; oomscope explain a.pickle reads memory snapshots\n"),
        ("config check y.png", "y.png:1: not text: byte 0x89 is not UTF-8; give a YAML file in UTF-8\n"),
    ],
)
def test_the_command_for_a_file_is_named(capsys, words: str, said: str) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("command", ["probe --preset gpt-tiny", "advise --preset gpt-tiny", "explain a.pickle"])
def test_a_card_of_a_few_bytes_is_one_of_gibibytes(capsys, command: str) -> None:
    assert run([*command.split(), "--limit", "80"]) == 2
    assert capsys.readouterr().err == "oomscope: --limit 80 is a card of 80 bytes; say --limit 80GiB if you mean that\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [("mi300x", "known cards: b200, h200"), ("h100-80", "did you mean h100-80gb or a100-80gb, or give its size")],
)
def test_an_unknown_card_is_named_by_its_like_or_by_its_size(capsys, name: str, said: str) -> None:
    assert run(["probe", "--preset", "gpt-tiny", "--gpu", name]) == 2
    told = capsys.readouterr().err
    assert f"; {said}" in told
    assert told.endswith("or give its size with --limit SIZE\n")


def test_a_file_that_git_does_not_keep_is_linked_into_checkouts(capsys, tmp_path: Path) -> None:
    repo, program = Repo(tmp_path / "a project"), "open('data/tokens.bin').read()\n"
    repo.commit("Begin", {"train.py": program, ".gitignore": "data/\n", "data/tokens.bin": ""})
    repo.commit("Go on", {})
    places = ["--repo", str(repo.path), "--state", str(tmp_path / "state")]
    words = ["--command", f"{sys.executable} train.py", "--exit-status", "--quiet"]
    assert run(["bisect", "main~1..main", *places, *words]) == 7
    hint = "What to do: git does not track data/tokens.bin: add --link data"
    assert hint in " ".join(capsys.readouterr().out.split())
