"""What captures a card: the runner with other parts, operations and ways of training on the virtual card."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu_truth
from tests.gpu import capture
from tests.gpu.captures import failures, golden, parcel, training
from tests.gpu.captures.golden import Card
from tests.unit.virtual.on_card import on_card


def echo(spec):
    if spec["name"] == "dies":
        os._exit(3)
    if spec["name"] == "hangs":
        time.sleep(600)
    if spec["name"] == "raises":
        raise ValueError("no such thing")
    (Path(spec["folder"]) / f"{spec['name']}.pickle.gz").write_bytes(b"snapshot")
    return {"name": spec["name"], "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF")}


def test_one_item_that_dies_or_hangs_costs_itself_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(capture.PARTS, "training", capture.Part(echo, 1.0))
    names = ["fine", "dies", "hangs", "raises", "set"]
    specs = [{"name": name, "conf": "roundup_power2_divisions:4" if name == "set" else ""} for name in names]
    monkeypatch.setattr(capture.training, "items", lambda: specs)
    assert capture.main([str(tmp_path / "out"), "--part", "training"]) == 1
    with gzip.open(tmp_path / "out" / "training.json.gz", "rt") as file:
        items = json.load(file)["items"]
    assert [item["name"] for item in items] == names
    fine, dies, hangs, raises, settings = items
    assert (fine["conf"], settings["conf"]) == (None, "roundup_power2_divisions:4")
    assert "exit code 3" in dies["failed"]
    assert "exit code -9" in hangs["failed"]
    assert "ValueError: no such thing" in raises["failed"]
    with tarfile.open(tmp_path / "out" / "training.tar") as archive:
        assert archive.getnames() == ["fine.pickle.gz", "set.pickle.gz"]
    assert "training: 2 of 5" in capsys.readouterr().out


def asleep(spec):
    (Path(spec["folder"]).parent / f"pid-{os.getpid()}").touch()
    time.sleep(600)


def gone(pid: int) -> bool:
    """Say whether a process ends within some seconds; one that nobody has waited for yet has."""
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_nothing_stays_on_the_card_when_the_capture_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(capture.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(capture.PARTS, "training", capture.Part(asleep, 60.0))
    monkeypatch.setattr(capture.training, "items", lambda: [{"name": name, "conf": ""} for name in "abc"])
    words = [str(tmp_path / "out"), "--part", "training", "--at-once", "2"]
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(capture.main(words)))
    process.start()
    while len(pids := [int(path.name[4:]) for path in tmp_path.glob("pid-*")]) < 2:
        assert process.is_alive()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    process.join(30)
    assert all(gone(pid) for pid in pids)
    assert process.exitcode == 128 + signal.SIGTERM
    with gzip.open(tmp_path / "out" / "training.json.gz", "rt") as file:
        items = json.load(file)["items"]
    assert [item["failed"].partition(" (")[0] for item in items] == [
        *["ended without a word"] * 2,
        "left out: signal 15 came",
    ]


def test_no_more_archives_are_left_than_come_back_and_what_has_no_room_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parcel, "LARGEST", 4000)
    for name, size in (("a", 900), ("b", 8000), ("c", 2500), ("d", 900), ("e", 900)):
        (tmp_path / f"{name}.pickle.gz").write_bytes(b"x" * size)
    assert parcel.write(tmp_path, "training", {}, tmp_path, most=2) == [
        "b.pickle.gz: 8000 bytes",
        "e.pickle.gz: 900 bytes",
    ]
    left_out = parcel.write(tmp_path, "failures", {}, tmp_path, most=1)
    assert left_out == [f"{name}.pickle.gz: {size} bytes" for name, size in (("b", 8000), ("c", 2500), ("e", 900))]
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == ["failures.tar", "training-2.tar", "training.tar"]
    with gzip.open(tmp_path / "failures.json.gz", "rt") as file:
        assert json.load(file)["not_packed"] == left_out


def test_a_call_leaves_no_more_files_than_come_back():
    archives = sum(capture.ARCHIVES.get(part, 1) for part in ("failures", "training"))
    assert len(capture.PARTS) + archives <= 8
    assert 1 + gpu_truth.ARCHIVES <= 8


@pytest.mark.parametrize("known", [True, False])
def test_settings_are_changed_by_the_name_that_this_torch_has(monkeypatch, known):
    asked = []
    by_accelerator = {"_accelerator_setAllocatorSettings": lambda conf: asked.append(("accelerator", conf))}
    memory = SimpleNamespace(_set_allocator_settings=lambda conf: asked.append(("cuda", conf)))
    fake = SimpleNamespace(_C=SimpleNamespace(**(by_accelerator if known else {})), cuda=SimpleNamespace(memory=memory))
    monkeypatch.setattr(golden, "torch", fake)
    golden.set_conf("max_split_size_mb:64")
    assert asked == [("accelerator" if known else "cuda", "max_split_size_mb:64")]


@pytest.mark.parametrize(
    ("other", "fraction", "limit"), [(0, None, 1000), (300, None, 700), (0, 0.5, 500), (600, 0.5, 400), (100, 1.0, 900)]
)
def test_the_limit_is_what_the_record_may_hold(other, fraction, limit):
    card = Card(total=80_000, record={"total_bytes": 1000, "other_bytes": other, "fraction": fraction})
    assert card.limit() == limit


def test_every_item_has_a_file_of_its_own():
    files = [item["file"] for item in (*training.items(), *failures.items())]
    assert len(set(files)) == len(files)


def test_every_operation_and_every_way_of_training_runs_on_the_virtual_card():
    ran, held, peak = on_card(
        """
        from tests.gpu.captures import decoder, training
        from tests.gpu.captures.operations import FAMILIES, Place

        def error_of(call):
            try:
                call()
            except RuntimeError as error:
                return str(error)

        place = Place("cuda", 1 / 64)
        ran = {family: [(name, error_of(call)) for name, call in calls(place)] for family, calls in FAMILIES.items()}
        small = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 4}
        shape = decoder.Shape(**small, ffn_hidden_size=128, vocab_size=256, seq_length=64)
        torch.cuda.reset_peak_memory_stats()
        held = {}
        for way in training.WAYS:
            work = decoder.training(shape, decoder.Way(**decoder.named(decoder.Way, way)), "cuda")
            for _ in range(training.ITERATIONS):
                work.step()
            held[way["name"]] = sum(each.numel() for each in work.model.parameters())
        say([ran, held, torch.cuda.memory_stats()["requested_bytes.all.peak"]])
        leave()
        """,
        preamble="torch",
    )
    for rows in ran.values():
        assert len(dict(rows)) == len(rows) > 3
    wrong = {name: error for rows in ran.values() for name, error in rows if error}
    assert all(name.startswith("sdpa_cudnn") and "dropout" in name for name in wrong), wrong
    assert {*wrong.values()} <= {"No available kernel. Aborting execution."}
    assert held.keys() == {way["name"] for way in training.WAYS}
    assert peak > 4 * max(held.values())
