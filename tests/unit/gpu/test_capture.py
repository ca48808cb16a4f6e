"""What captures a card: the runner with other parts, operations and ways of training on the virtual card."""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing
import os
import signal
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu_truth
from tests.gpu import capture
from tests.gpu.captures import collectives, failures, golden, history, machine, parcel, running, temporaries, training
from tests.gpu.captures.golden import Card
from tests.unit.virtual.on_card import on_card

RECORD = {"name": "a/00", "conf": "max_split_size_mb:64", "total_bytes": 1000, "other_bytes": 0, "fraction": None}


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
    monkeypatch.setitem(capture.PARTS, "training", capture.Part(echo, 3.0))
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


def test_what_is_done_is_written_while_the_part_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "FLUSH_S", -1.0)
    specs = [{"name": name, "conf": ""} for name in ("fine", "also")]
    kept = []
    part, until = capture.Part(echo, 60.0), time.monotonic() + 60
    done = running.run_all(part, specs, tmp_path, at_once=1, until=until, keep=lambda rows: kept.append(len(rows)))
    assert len(done) == 2
    assert set(kept) >= {0, 1}, "before the second was done"


def test_an_item_outlasts_the_time_by_no_more_than_its_grace(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "GRACE_S", 0.2)
    started = time.monotonic()
    done = running.run_all(
        capture.Part(echo, 60.0), [{"name": "hangs", "conf": ""}], tmp_path, at_once=1, until=started + 0.1
    )
    assert "exit code -9" in done[0]["failed"]
    assert time.monotonic() - started < 30, "not the 60 s of the part"


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_on_the_card_when_the_capture_is_ended(tmp_path, monkeypatch, number):
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
    os.kill(process.pid, number)
    process.join(30)
    assert all(gone(pid) for pid in pids)
    if number == signal.SIGKILL:
        return
    assert process.exitcode == 128 + number
    with gzip.open(tmp_path / "out" / "training.json.gz", "rt") as file:
        items = json.load(file)["items"]
    assert [item["failed"].partition(" (")[0] for item in items] == [
        *["ended without a word"] * 2,
        "left out: signal 15 came",
    ]


def test_a_part_that_cannot_even_begin_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(capture.PARTS, "training", capture.Part(echo, 60.0))
    monkeypatch.setattr(capture.training, "items", lambda: [{"name": "fine", "conf": ""}])
    monkeypatch.setattr(capture.failures, "items", lambda: 1 // 0)
    words = [str(tmp_path / "out"), "--part", "failures", "--part", "training"]
    assert capture.main(words) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert (tmp_path / "out" / "training.json.gz").exists()


def test_archives_are_cut_where_they_grow_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(parcel, "LARGEST", 4000)
    for name in "abcd":
        (tmp_path / f"{name}.pickle.gz").write_bytes(b"x" * 900)
    parcel.write(tmp_path, "training", {}, tmp_path)
    names = []
    for name in ("training.tar", "training-2.tar"):
        with tarfile.open(tmp_path / name) as archive:
            names.append(archive.getnames())
    assert names == [["a.pickle.gz", "b.pickle.gz"], ["c.pickle.gz", "d.pickle.gz"]]


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


def test_what_cannot_be_written_leaves_no_half_of_a_file(tmp_path):
    with contextlib.suppress(ZeroDivisionError), parcel.replacing(tmp_path / "a.json.gz") as partial:
        partial.touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_call_leaves_no_more_files_than_come_back():
    archives = sum(capture.ARCHIVES.get(part, 1) for part in ("failures", "training"))
    assert len(capture.PARTS) + archives <= 8
    assert 1 + gpu_truth.ARCHIVES <= 8


def test_a_snapshot_that_goes_while_it_is_packed_is_left_out(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.pickle.gz").write_bytes(b"x")
    volumes = parcel.volumes

    def gone(files, most):
        files[0].unlink()
        found = volumes(files, most)
        files[1].unlink()
        return found

    monkeypatch.setattr(parcel, "volumes", gone)
    parcel.write(tmp_path, "training", {}, tmp_path)
    with tarfile.open(tmp_path / "training.tar") as archive:
        assert archive.getnames() == ["c.pickle.gz"]


def test_an_operation_that_cannot_be_made_keeps_those_before_it(monkeypatch):
    def family(_place):
        yield "first", int
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(temporaries.FAMILIES, "norms", family)
    monkeypatch.setattr(temporaries, "measured", lambda call: {"peak": call()})
    monkeypatch.setattr(temporaries.torch.cuda, "init", lambda: None)
    given = temporaries.run({"name": "norms", "kind": "family", "conf": ""})
    assert given["rows"] == [{"op": "first", "peak": 0}]
    assert given["failed"] == "after 1 operations: RuntimeError('no kernel image')"


def test_a_family_that_hangs_keeps_the_operations_before_it(tmp_path, monkeypatch):
    def family(_place):
        yield "first", int
        yield "second", lambda: time.sleep(600)

    monkeypatch.setitem(temporaries.FAMILIES, "norms", family)
    monkeypatch.setattr(temporaries, "measured", lambda call: {"peak": call()})
    monkeypatch.setattr(temporaries.torch.cuda, "init", lambda: None)
    specs = [{"name": "norms", "kind": "family", "conf": ""}]
    part, until = capture.Part(temporaries.run, 1.0), time.monotonic() + 60
    [given] = running.run_all(part, specs, tmp_path, at_once=1, until=until)
    assert given["rows"] == [{"op": "first", "peak": 0}]
    assert given["failed"] == "ended without a word after 1 operations: in second"
    assert not {"folder", "answer"} & given.keys()


@pytest.mark.parametrize("known", [True, False])
def test_settings_are_changed_by_the_name_that_this_torch_has(monkeypatch, known):
    asked = []
    by_accelerator = {"_accelerator_setAllocatorSettings": lambda conf: asked.append(("accelerator", conf))}
    memory = SimpleNamespace(_set_allocator_settings=lambda conf: asked.append(("cuda", conf)))
    fake = SimpleNamespace(_C=SimpleNamespace(**(by_accelerator if known else {})), cuda=SimpleNamespace(memory=memory))
    monkeypatch.setattr(golden, "torch", fake)
    golden.set_conf("max_split_size_mb:64")
    assert asked == [("accelerator" if known else "cuda", "max_split_size_mb:64")]


def test_what_time_leaves_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(capture.PARTS, "training", capture.Part(echo, 60.0))
    past = time.monotonic() - 1
    done = running.run_all(capture.Part(echo, 1.0), [{"name": "fine", "conf": ""}], tmp_path, at_once=2, until=past)
    assert done == [{"name": "fine", "conf": "", "failed": "left out: the time was up"}]


def test_traces_of_one_stream_are_played_first(tmp_path):
    again = {**RECORD, "name": "again", "ops": [["m", 1, 512, 2]], "expected": {"torch": "another"}}
    several = {**RECORD, "name": "several", "ops": [["m", 1, 512, 2]], "expected": {}}
    one = {**RECORD, "name": "one", "ops": [["m", 1, 512], ["f", 1]], "expected": {}}
    recorded = {**RECORD, "name": "recorded", "ops": [["m", 1, 512], ["r", 1, 1]], "expected": {}}
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in (several, again, recorded, one))
    items = capture.items("golden", [tmp_path])
    assert [item["name"] for item in items] == ["one", "several", "recorded"]
    assert items[0]["conf"] == "max_split_size_mb:64"
    assert "expected" not in items[0]["record"]


@pytest.mark.parametrize(
    ("other", "fraction", "limit"), [(0, None, 1000), (300, None, 700), (0, 0.5, 500), (600, 0.5, 400), (100, 1.0, 900)]
)
def test_the_limit_is_what_the_record_may_hold(other, fraction, limit):
    card = Card(total=80_000, record={**RECORD, "other_bytes": other, "fraction": fraction})
    assert card.limit() == limit


def test_paths_of_the_machine_are_cut_off_and_equal_stacks_kept_once():
    def frames():
        return [
            {
                "filename": "/somewhere/lib/python3/site-packages/torch/nn/modules/linear.py",
                "line": 1,
                "name": "forward",
            },
            {"filename": str(Path(training.__file__)), "line": 2, "name": "run"},
            {"filename": "/elsewhere/secret/train.py", "line": 3, "name": "main"},
            {"filename": "??", "line": 0, "name": "clone"},
        ]

    snapshot = {
        "device_traces": [[{"action": "alloc", "frames": frames()}, {"action": "free", "frames": frames()}]],
        "segments": [{"frames": frames(), "blocks": [{"state": "active_allocated"}]}],
    }
    history.trim(snapshot)
    first, second = (event["frames"] for event in snapshot["device_traces"][0])
    assert first is second is snapshot["segments"][0]["frames"]
    files = [frame["filename"] for frame in first]
    assert files == ["torch/nn/modules/linear.py", "tests/gpu/captures/training.py", "train.py", "??"]


def test_every_item_has_a_file_of_its_own():
    files = [item["file"] for item in (*training.items(), *failures.items())]
    assert len(set(files)) == len(files)


def test_every_operation_runs_on_the_virtual_card():
    ran = on_card(
        """
        from tests.gpu.captures.operations import FAMILIES, Place

        def error_of(call):
            try:
                call()
            except RuntimeError as error:
                return str(error)

        place = Place("cuda", 1 / 64)
        say({family: [(name, error_of(call)) for name, call in calls(place)] for family, calls in FAMILIES.items()})
        leave()
        """,
        preamble="torch",
    )
    for rows in ran.values():
        assert len(dict(rows)) == len(rows) > 3
    wrong = {name: error for rows in ran.values() for name, error in rows if error}
    assert all(name.startswith("sdpa_cudnn") and "dropout" in name for name in wrong), wrong
    assert {*wrong.values()} <= {"No available kernel. Aborting execution."}


def test_every_way_trains_on_the_virtual_card():
    trained = on_card(
        """
        from tests.gpu.captures import decoder, training

        small = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 4}
        short = {"ffn_hidden_size": 128, "vocab_size": 256, "seq_length": 64}
        held = {}
        for way in training.WAYS:
            shape = decoder.Shape(**small, **short)
            work = decoder.training(shape, decoder.Way(**decoder.named(decoder.Way, way)), "cuda")
            for _ in range(training.ITERATIONS):
                work.step()
            held[way["name"]] = sum(each.numel() for each in work.model.parameters())
        say([held, torch.cuda.memory_stats()["requested_bytes.all.peak"]])
        leave()
        """,
        preamble="torch",
    )
    assert trained[0].keys() == {way["name"] for way in training.WAYS}
    assert trained[1] > 4 * max(trained[0].values())


def forbidden(*_):
    raise PermissionError("not in this container")


def test_a_machine_that_forbids_to_be_asked_is_described_nonetheless(monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150_000_000_000
    )
    cuda = SimpleNamespace(
        **dict.fromkeys(("init", "synchronize"), lambda: None),
        get_device_properties=lambda _index: properties,
        mem_get_info=lambda: (1, 2),
        memory_reserved=lambda: 0,
        memory=SimpleNamespace(_snapshot=forbidden),
    )
    backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91000))
    fake = SimpleNamespace(
        __version__="2.11.0", version=SimpleNamespace(cuda="13.0"), empty=lambda *_, **__: None, cuda=cuda
    )
    fake.backends = backends
    monkeypatch.setattr(machine, "torch", fake)
    monkeypatch.setattr(machine, "used_bytes", forbidden)
    told = machine.describe({})
    assert (told["gpu"], told["compute_capability"], told["cudnn"]) == ("NVIDIA H200", "9.0", 91000)
    assert told["used_bytes"] == {"before": None, "with_context": None}
    assert told["untold"].keys() == {"used_bytes", "allocator_settings"}


def test_collectives_that_fail_or_hang_are_named_and_end(tmp_path, monkeypatch):
    programs = {
        "fails": "raise RuntimeError('NCCL error: Duplicate GPU detected : rank 0 and rank 1')",
        "hangs": "import time; time.sleep(600)",
        "tells": "print('noise'); print('{\"nccl\": [2, 28, 9]}')",
    }
    popen = collectives.subprocess.Popen
    told = {}
    for name, program in programs.items():
        command = [sys.executable, "-c", program]
        monkeypatch.setattr(collectives.subprocess, "Popen", lambda _, command=command, **how: popen(command, **how))
        [told[name]] = collectives.measured(tmp_path, [1], seconds=2.0)["1"]
    assert "Duplicate GPU detected" in told["fails"]["failed"]
    assert told["hangs"] == {"failed": "it did not come to an end"}
    assert told["tells"] == {"nccl": [2, 28, 9]}


def test_collectives_run_on_the_virtual_card(tmp_path):
    [told] = collectives.measured(tmp_path, [1])["1"]
    assert told["nccl"] == [*torch.cuda.nccl.version()]
    assert {"context", "all_reduce", "destroyed"} <= told["outside_bytes"].keys()


@pytest.mark.parametrize("said", ["[N/A]", "[Insufficient Permissions]", None])
def test_bytes_that_nvidia_smi_does_not_say_are_none(monkeypatch, said):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(machine, "_smi", lambda _field: said)
    assert machine.used_bytes() is None
    monkeypatch.setattr(machine, "_smi", lambda _field: "12 MiB")
    assert machine.used_bytes() == 12 << 20
