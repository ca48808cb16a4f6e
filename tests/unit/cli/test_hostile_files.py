"""Files that are damaged or hold what nobody expects: each is read, or refused in one line with an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.run.runner import Here
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.tuning import variants
from tests.unit.cli.hostile import Told, damaged, numbers, spoilt
from tests.unit.cli.test_bisect_journal import Searches
from tests.unit.gate.nights import measured

CONFIG = """\
model:
  num_layers: 2
  hidden_size: 128
  num_attention_heads: 4
  vocab_size: 1024
parallel: {tensor_model_parallel_size: 2, sequence_parallel: true}
recompute: {recompute_granularity: selective, recompute_modules: [core_attn]}
data: {seq_length: 128, micro_batch_size: 1}
device: {limit: 80GiB, gpu: h100-80gb}
allocator: {conf: "expandable_segments:True"}
probe: {rank: 0, iterations: 2, timeout_s: 60}
"""
SUITE = """\
defaults:
  limit: 80GiB
  metrics: {peak_requested: {warn: 1 MiB, fail: 2 %}}
cases:
  - name: tiny
    preset: gpt-tiny
    rank: 0
  - name: mine
    config: cfg.yaml
    overrides: [data.micro_batch_size=2]
    metrics: {peak_reserved: {fail: 20 MiB}, overhead: null}
"""


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(capsys)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite, its baseline, a night and a ledger, over a played probe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(1 << 30))
    (tmp_path / "cfg.yaml").write_text(CONFIG)
    (tmp_path / "memory.yaml").write_text(SUITE)
    assert run(["gate", "update", "memory.yaml", "--quiet"]) == ExitCode.OK
    words = ["--quiet", "--ledger", "gate.sqlite", "--result", "night.json"]
    assert run(["gate", "run", "memory.yaml", *words]) == ExitCode.OK
    return tmp_path


def test_configurations(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "cfg.yaml"
    for number in numbers(60):
        path.write_bytes(damaged(CONFIG.encode(), number))
        told.by(str(number), "config", "check", str(path))
    assert told.wrong == []
    assert told.codes[ExitCode.USAGE] > 15


def test_suites(gate: Path, told: Told) -> None:
    for number in numbers(40):
        (gate / "memory.yaml").write_bytes(damaged(SUITE.encode(), number))
        told.by(str(number), "gate", "run", "memory.yaml", "--no-ledger", "--quiet")
    assert told.wrong == []
    assert told.codes[ExitCode.USAGE] > 10


def test_baselines(gate: Path, told: Told) -> None:
    path = gate / "memory.baseline.yaml"
    whole = path.read_bytes()
    for number in numbers(40):
        path.write_bytes(damaged(whole, number))
        told.by(str(number), "gate", "run", "memory.yaml", "--no-ledger", "--quiet")
    assert told.wrong == []
    assert told.codes[ExitCode.USAGE] > 10
    assert told.codes[ExitCode.OK] < told.codes.total() / 2, "a damaged baseline is hardly ever green"


def test_nights(gate: Path, told: Told) -> None:
    whole = (gate / "night.json").read_bytes()
    for number in numbers(25):
        (gate / "night.json").write_bytes(damaged(whole, number))
        told.by(str(number), "gate", "import", "night.json", "--ledger", "other.sqlite")
        told.by(str(number), "gate", "update", "memory.yaml", "--from", "night.json")
    told.by("what was read", "gate", "history", "--ledger", "other.sqlite")
    assert told.wrong == []


def test_ledgers(gate: Path, told: Told) -> None:
    path = gate / "gate.sqlite"
    whole = path.read_bytes()
    for number in numbers(30):
        path.write_bytes(damaged(whole, number))
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        told.by(str(number), "gate", "history", "--ledger", str(path))
        told.by(str(number), "gate", "import", "night.json", "--ledger", str(path))
    assert told.wrong == []
    assert told.codes[ExitCode.USAGE] > 8


@pytest.mark.parametrize("name", ["memory.yaml", "memory.baseline.yaml", "cfg.yaml", "gate.sqlite", "night.json"])
def test_something_else_in_the_place_of_a_file(gate: Path, told: Told, name: str) -> None:
    for what in spoilt(gate / name):
        told.by(what, "gate", "run", "memory.yaml", "--ledger", "gate.sqlite", "--quiet")
        told.by(what, "gate", "history", "--ledger", "gate.sqlite")
        told.by(what, "gate", "import", "night.json", "--ledger", "gate.sqlite")
    assert told.wrong == []


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of a search that was cut off, in whose repository commands are given."""
    made = Searches(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("oomscope.bisect.run.prober.runner_of", lambda *_: Here(run=made.measure))
    monkeypatch.chdir(made.repo.path)
    made.interrupted(4)
    (path,) = (tmp_path / "state").rglob("*.jsonl")
    return path


WORDS = (
    ["log", "1"],
    ["export", "1"],
    ["resume", "1", "--quiet"],
)


def test_journals(journal: Path, told: Told) -> None:
    whole = journal.read_bytes()
    for number in numbers(24):
        journal.write_bytes(damaged(whole, number))
        told.by(str(number), "bisect", *WORDS[number % len(WORDS)])
    assert told.wrong == []
    assert set(told.codes) >= {ExitCode.OK, ExitCode.USAGE}
