"""The emulator does exactly what PyTorch's compiled allocator was recorded to do, in every field of every record."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = sorted((ROOT / "fixtures" / "allocator-golden").glob("*.jsonl.gz"))


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    path = Path(__file__).with_name("allocator_golden.py")
    spec = importlib.util.spec_from_file_location("allocator_golden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_there_are_fixtures():
    assert len(FIXTURES) == 2


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_every_field_of_the_fixtures_on_every_version(golden, path):
    wrong = {
        f"{record['name']} on {version}": fields
        for record in golden.records(path)
        for version, fields in golden.differences_by_version(record, record["identical_on"]).items()
        if fields
    }
    assert wrong == {}


def test_every_field_of_the_fixtures_in_batches(golden):
    for path in FIXTURES:
        for record in golden.records(path):
            assert golden.differences(record, record["torch_version"], batched=True) == [], record["name"]


def test_every_record_of_the_ground_truth(golden, ground_truth, capsys):
    files = sorted(str(path) for path in (ground_truth / "allocator-golden").glob("*.jsonl.gz"))
    assert files, "the ground truth holds no allocator records"
    code = golden.main(files)
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert (code, last_line.endswith("records identical")) == (0, True), last_line


def test_versions_that_differ_for_the_engine_are_played_separately(golden, monkeypatch):
    played = []
    monkeypatch.setattr(golden, "differences", lambda _record, version, **_how: played.append(version) or [])
    record = {"total_bytes": 2**30, "other_bytes": 0, "addr_policy": "bump", "fraction": None, "conf": "", "ops": []}
    versions = ["2.6.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.15.0"]
    assert list(golden.differences_by_version(record, versions)) == versions
    assert played == ["2.6.0", "2.12.0", "2.13.0", "2.15.0"]
    played.clear()
    set_later = record | {"conf": "max_non_split_rounding_mb:40", "ops": [["m", 1, 512], ["c", ""]]}
    golden.differences_by_version(set_later, ["2.10.0", "2.11.0"])
    assert played == ["2.10.0", "2.11.0"], "what is reset when settings change differs"


@pytest.mark.parametrize("batched", [False, True])
def test_under_a_fraction_of_zero_the_observer_gets_a_limit_of_zero(golden, batched):
    """As the compiled allocators of torch 2.11 and 2.15 tell it."""
    record = {"total_bytes": 2**28, "other_bytes": 0, "addr_policy": "bump", "fraction": 0.0, "conf": ""}
    record["ops"] = [["m", 1, 1000], ["x", 1.0], ["m", 2, 2**29]]
    played = golden.play_batched(record, "2.15.0", compiled=False) if batched else golden.play(record, "2.15.0")
    assert [(oom["alloc_size"], oom["device_total"]) for oom in played["ooms"]] == [(2**21, 0), (2**29, 2**28)]


def test_a_difference_is_found(golden, tmp_path, capsys):
    record = next(golden.records(FIXTURES[0]))
    record["expected"]["stats"]["num_ooms"] += 1
    path = tmp_path / "wrong.jsonl.gz"
    with golden.gzip.open(path, "wt") as lines:
        lines.write(golden.json.dumps(record) + "\n")
    assert golden.main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "stats" in out
    assert out.endswith("0 of 1 records identical\n")


def test_random_addresses_are_skipped_and_named(golden, tmp_path, capsys):
    record = next(golden.records(FIXTURES[0])) | {"addr_policy": "random", "name": "somewhere"}
    path = tmp_path / "random.jsonl.gz"
    with golden.gzip.open(path, "wt") as lines:
        lines.write(golden.json.dumps(record) + "\n")
    assert golden.main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "skipped random.jsonl.gz somewhere" in out
    assert out.endswith("0 of 0 records identical\n")
