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
from tests.gpu.virtual_captures import TRACES


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


def test_captures_of_the_virtual_card_are_none_of_a_real_one(out: Path, capsys):
    assert taken(out) == 2
    assert "not captured on a real card" in capsys.readouterr().err
    assert not (out.parent / "cuda").exists()


def test_earlier_captures_stay_unless_told(out: Path, capsys):
    (out.parent / "cuda").mkdir()
    (out.parent / "cuda" / "old").touch()
    assert taken(out, "--virtual") == 2
    assert "--force" in capsys.readouterr().err
    assert taken(out, "--virtual", "--force") == 0
    assert not (out.parent / "cuda" / "old").exists()


def no_json(out: Path) -> None:
    (out / "golden.json.gz").write_bytes(b"no gzip")


def cut_short(out: Path) -> None:
    path = out / "golden.json.gz"
    path.write_bytes(path.read_bytes()[:-2000])


def another_part(out: Path) -> None:
    changed(out / "golden.json.gz", lambda document: document.update(part="training"))


def no_machine(out: Path) -> None:
    (out / "machine.json.gz").unlink()


def something_else(out: Path) -> None:
    with tarfile.open(out / "training.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("../training-x.pickle.gz"), io.BytesIO())


def no_snapshot(out: Path) -> None:
    info, content = tarfile.TarInfo("training-x.pickle.gz"), gzip.compress(b"cos\nsystem\n(S'true'\ntR.")
    info.size = len(content)
    with tarfile.open(out / "training.tar", "a") as archive:
        archive.addfile(info, io.BytesIO(content))


def failed_machine(out: Path) -> None:
    changed(out / "machine.json.gz", lambda document: document["items"][0].update(failed="RuntimeError: no card"))


def another_torch(out: Path) -> None:
    changed(out / "golden.json.gz", lambda document: document.update(torch="1.0.0"))


SPOILT = [no_json, cut_short, another_part, no_machine, something_else, no_snapshot]


@pytest.mark.parametrize("spoil", [*SPOILT, failed_machine, another_torch])
def test_what_is_no_capture_is_refused_and_nothing_written(out: Path, capsys, spoil):
    spoil(out)
    assert taken(out, "--virtual") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_what_failed_is_named_without_the_paths_of_its_machine(out: Path, capsys):
    text = 'Traceback:\n  File "/home/somebody/x.py"\nRuntimeError: cannot open /usr/lib/somewhere/libcuda.so'
    row = {"name": "flash", "conf": "", "failed": text}
    changed(out / "training.json.gz", lambda document: document["items"].append(row))
    assert taken(out, "--virtual") == 0
    line = "training: flash : RuntimeError: cannot open libcuda.so"
    assert f"left out: {line}" in capsys.readouterr().err
    assert f"- {line}" in (out.parent / "cuda" / "README.md").read_text()


def test_what_a_capture_that_was_cut_off_lacks_is_named(out: Path, capsys):
    changed(out / "golden.json.gz", lambda document: document.update(is_whole=False))
    (out / "failures.json.gz").unlink()
    assert taken(out, "--virtual") == 0
    said, kept = capsys.readouterr().err, (out.parent / "cuda" / "README.md").read_text()
    for line in ("golden: what came after it was cut off", "failures: all of it"):
        assert f"left out: {line}" in said
        assert f"- {line}" in kept


def test_paths_are_cut_off_however_deep_they_lie():
    row = {"name": "norms", "rows": [{"op": "a", "error": "no kernel in /opt/cuda/lib/x.so"}], "stats": {"n": 1}}
    assert take_in.cleaned({**row, "folder": "/x/y"}) == {
        "name": "norms",
        "rows": [{"op": "a", "error": "no kernel in x.so"}],
        "stats": {"n": 1},
    }
    assert take_in.cleaned({"failed": ""})["failed"] == "it did not say why"


def test_archives_and_snapshots_that_nothing_tells_of_are_named(out: Path, capsys):
    (out / "failures.json.gz").unlink()
    changed(out / "training.json.gz", lambda document: document["items"][0].update(file="training-other.pickle.gz"))
    assert taken(out, "--virtual") == 0
    said = capsys.readouterr().err
    for line in (
        "failures.tar: no failures.json.gz tells of it",
        "training: training-sgd-default.pickle.gz: no item tells of it",
        "training: training-other.pickle.gz: no archive holds it",
    ):
        assert f"left out: {line}" in said
    assert [path.name for path in (out.parent / "cuda").glob("*.pickle.gz")] == [
        "training-sgd-expandable-segments.pickle.gz"
    ]


def test_what_is_too_large_is_cut_or_left_out(out: Path, monkeypatch, capsys):
    monkeypatch.setattr(take_in, "LARGEST", 4000)
    assert taken(out, "--virtual") == 0
    cuda = out.parent / "cuda"
    assert len(captures.items(cuda, "golden")) == len(TRACES)
    assert {path.name for path in cuda.glob("golden*")} == {f"golden-{n}.json.gz" for n in range(1, len(TRACES) + 1)}
    assert "left out: training: training-sgd-default.pickle.gz: more than" in capsys.readouterr().err
    assert not list(cuda.glob("training-*.pickle.gz"))


def test_two_captures_of_one_part_are_not_mixed(out: Path, capsys):
    again = shutil.copytree(out, out.parent / "again")
    assert take_in.main([str(out), str(again), "--into", str(out.parent / "cuda"), "--command", "x"]) == 2
    assert "machine is in" in capsys.readouterr().err
