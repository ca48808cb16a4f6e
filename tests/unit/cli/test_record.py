"""The command line of a recording; what its processes then do is tested in tests/unit/capture/test_startup.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oomscope.capture.arming import STARTUP
from oomscope.cli.main import run
from oomscope.virtual.settings import CardSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, tuple[str, ...], dict[str, str]]]:
    calls: list[tuple[str, tuple[str, ...], dict[str, str]]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(os, "execvpe", lambda *call: calls.append(call))
    return calls


def test_the_command_takes_the_place_of_oomscope(started, tmp_path: Path) -> None:
    run(["record", "--every", "5", "--", "torchrun", "--nproc-per-node", "8", "train.py", "--force"])
    [(program, words, environment)] = started
    assert (program, words) == ("torchrun", ("torchrun", "--nproc-per-node", "8", "train.py", "--force"))
    assert environment["OOMSCOPE_RECORD"] == str(tmp_path / "snap-{rank}.pickle")
    assert environment["OOMSCOPE_RECORD_EVERY"] == "5"
    assert environment["PYTHONPATH"] == STARTUP
    assert environment["HOME"] == os.environ["HOME"]
    assert "OOMSCOPE_RECORD_FORCE" not in environment, "that is the program's own option"


@pytest.mark.parametrize(
    ("gpu", "card", "is_hinted"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_without_a_card_another_command_is_named(started, monkeypatch, capsys, gpu, card, is_hinted) -> None:
    monkeypatch.setattr("oomscope.cli.record.has_gpu", lambda: gpu)
    for name in CardSettings().variables():
        monkeypatch.delenv(name, raising=False)
    if card:
        for name, value in CardSettings().variables().items():
            monkeypatch.setenv(name, value)
    run(["record", "--", "torchrun", "train.py"])
    assert ("oomscope probe -- COMMAND measures on a virtual card" in capsys.readouterr().err) == is_hinted
    assert len(started) == 1


def test_json_shows_the_variables_and_runs_nothing(started, capsys) -> None:
    assert run(["record", "--json", "--stacks", "none"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["environment"]["OOMSCOPE_RECORD_STACKS"] == "none"
    assert document["environment"]["PYTHONPATH"] == STARTUP
    assert started == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command to run"),
        (["--out", "snap-{node}.pickle", "--", "true"], "unknown field {node}"),
        (["--out", "folder/", "--", "true"], "names no file"),
        (["--stacks", "cpp", "--", "true"], "cpp"),
        (["--max-entries", "0", "--", "true"], "max-entries"),
    ],
)
def test_wrong_words_are_refused_before_anything_runs(started, capsys, words, said) -> None:
    assert run(["record", *words]) == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_a_program_that_is_not_there(capsys) -> None:
    assert run(["record", "--", "no-such-program"]) == 2
    assert "oomscope: no-such-program: cannot be run (No such file or directory)" in capsys.readouterr().err
