"""One warm parent serves jobs of every kind: the bundled transformer and checkouts, on either spelling of a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from oomscope.config.load import load_preset
from oomscope.probe.job import HarnessTarget, ProbeJob, bundled_job
from oomscope.probe.machine.environment import child_environment
from oomscope.probe.process import warm
from oomscope.probe.process.warm import WarmParents
from oomscope.probe.process.workers import Order

USER = {"HOME": "/home/ada"}
BUNDLED = bundled_job(load_preset("gpt-tiny", ["probe.backend=virtual"]).config)


class FakeParent:
    """Serves anything."""

    def __init__(self, environment: dict[str, str], stop: object) -> None:
        self.workers = 0


def order(job: ProbeJob, variables: Mapping[str, str]) -> Order:
    environment = child_environment(job, variables)
    nowhere = Path("nowhere")
    return Order(job=nowhere, result=nowhere, progress=-1, output=-1, cwd=nowhere, environment=environment)


def test_one_parent_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "Parent", FakeParent)
    parents = WarmParents()
    harness = HarnessTarget(harness="h.py", repo="repo")
    jobs = [BUNDLED, ProbeJob(target=harness, backend="virtual"), ProbeJob(target=harness, backend="auto")]
    serving = [parents._parent(order(job, USER)) for job in jobs]
    assert serving == [serving[0]] * 3
    other = ProbeJob(target=harness, environment={"LIBRARY": "1"})
    assert parents._parent(order(other, USER)) is not serving[0]


def test_a_checkouts_worker_writes_no_bytecode_whoever_the_parent_was_started_for(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("")
    told = "[sys.dont_write_bytecode, sys.flags.dont_write_bytecode]"
    (tmp_path / "h.py").write_text(f"import part, sys\ndef setup(ctx):\n    raise SystemExit({told})\n")
    parents = WarmParents()
    try:
        parents._parent(order(BUNDLED, os.environ))
        target = HarnessTarget(harness=str(tmp_path / "h.py"), repo=str(tmp_path))
        result = parents.run(ProbeJob(target=target, backend="virtual"))
        assert len(parents.running) == 1
    finally:
        parents.close()
    assert "[True, 1]" in result.failure.message
    assert not list(tmp_path.rglob("*.pyc"))
