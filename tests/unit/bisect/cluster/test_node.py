"""What a job does on its node: a probe that does not know that it is one, and what keeps it from being one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from oomscope.bisect.cluster.node import Order, machine_of, measure
from oomscope.bisect.identity import Machine
from oomscope.probe.job import CommandTarget, HarnessTarget, ProbeJob
from oomscope.probe.launch import StoppedError
from oomscope.probe.result import ProbeResult


def order(tmp_path: Path, job: ProbeJob | None) -> str:
    alive, progress = str(tmp_path / "alive"), str(tmp_path / "progress")
    return Order(alive=alive, progress=progress, job=None if job is None else job.to_json()).to_json()


def test_a_target_sees_nothing_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alive").touch()
    for name in ("SLURM_PROCID", "SLURMD_NODENAME", "SUBMITIT_EXECUTOR", "SBATCH_PARTITION", "PMIX_RANK"):
        monkeypatch.setenv(name, "7")
    script = 'echo peak $(env | grep -c -E "^(SLURM|SUBMITIT|SBATCH|PMIX)")'
    (tmp_path / "script").write_text(script)
    job = ProbeJob(target=CommandTarget(repo=str(tmp_path), command="sh script", metric_regex=r"peak (\d+)"))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)]
    result = ProbeResult.from_json(measure(order(tmp_path, job))["result"])
    assert result.peak is not None, result.failure
    assert result.peak.requested_bytes == 0
    assert os.environ["SLURM_PROCID"] == "7", "submitit still needs them"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)] == handlers
    assert '"stage": "step"' in (tmp_path / "progress").read_text()


def test_a_job_of_a_search_that_is_gone_ends(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("sleep 60")
    job = ProbeJob(target=CommandTarget(repo=str(tmp_path), command="sh script", metric_regex="(1)"))
    with pytest.raises(StoppedError):
        measure(order(tmp_path, job))


def test_a_file_that_the_node_does_not_see_is_named(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    job = ProbeJob(target=HarnessTarget(repo=str(tmp_path), harness=str(harness)))
    result = ProbeResult.from_json(measure(order(tmp_path, job))["result"])
    assert result.failure is not None
    assert result.failure.kind == "unfit"
    assert str(harness) in result.failure.message
    assert "file system" in result.failure.message


def test_a_node_says_what_it_is_but_not_which_card_a_job_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    told = machine_of(measure(order(tmp_path, None))["machine"])
    here = Machine.here({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert (told.versions, told.packages, told.gpus) == (here.versions, here.packages, here.gpus)
