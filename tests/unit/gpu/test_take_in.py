"""Captures come in trimmed, whole or not at all; what is none stays outside."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch

from tests.conformance import card_captures as captures
from tests.gpu import take_in


@pytest.fixture
def out(virtual_captures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(virtual_captures, tmp_path / "out"))


def taken(out: Path, *more: str) -> int:
    return take_in.main([str(out), "--into", str(out.parent / "cuda"), "--command", "capture.py OUT", *more])


def changed(path: Path, change) -> None:
    with gzip.open(path, "rt") as file:
        document = json.load(file)
    change(document)
    with gzip.open(path, "wt") as file:
        json.dump(document, file)


def test_a_capture_comes_in_and_can_be_played(out: Path, capsys):
    assert taken(out, "--virtual") == 0
    cuda = out.parent / "cuda"
    names = {path.name for path in cuda.iterdir()}
    assert {"README.md", "machine.json.gz", "golden.json.gz", "oom-capacity-default.pickle.gz"} <= names
    assert not any(name.endswith(".tar") for name in names)
    text = (cuda / "README.md").read_text()
    assert f"- torch: {torch.__version__}, CUDA {torch.version.cuda}" in text
    assert "- command: `capture.py OUT`" in text
    assert "| `failures*.json.gz` | failed allocations of each kind, with the observer's snapshot | 9 | 9 |" in text
    assert capsys.readouterr().out.startswith(f"Wrote {cuda}")
    [item, *_] = captures.items(cuda, "golden")
    assert captures.golden_differences(item) == []
    assert [item["name"] for item in captures.items(cuda, "training")] == ["sgd", "sgd"]
    [machine] = captures.items(cuda, "machine")
    assert "all_reduce" in machine["collectives"]["1"][0]["outside_bytes"]


def test_captures_of_the_virtual_card_are_none_of_a_real_one(out: Path, capsys):
    assert taken(out) == 2
    assert "not captured on a real card" in capsys.readouterr().err
    assert not (out.parent / "cuda").exists()


def cut_short(out: Path) -> None:
    path = out / "golden.json.gz"
    path.write_bytes(path.read_bytes()[:-2000])


def something_else(out: Path) -> None:
    with tarfile.open(out / "training.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("../training-x.pickle.gz"), io.BytesIO())


def no_snapshot(out: Path) -> None:
    info, content = tarfile.TarInfo("training-x.pickle.gz"), gzip.compress(b"cos\nsystem\n(S'true'\ntR.")
    info.size = len(content)
    with tarfile.open(out / "training.tar", "a") as archive:
        archive.addfile(info, io.BytesIO(content))


def another_torch(out: Path) -> None:
    changed(out / "golden.json.gz", lambda document: document.update(torch="1.0.0"))


@pytest.mark.parametrize("spoil", [cut_short, something_else, no_snapshot])
def test_what_is_no_capture_is_refused_and_nothing_written(out: Path, capsys, spoil):
    spoil(out)
    assert taken(out, "--virtual") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in out.parent.iterdir()] == ["out"]
