from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob
from oomscope.probe.process import warm
from oomscope.probe.result import Failure, ProbeResult
from oomscope.pytest_plugin.probing import Probing
from oomscope.units import GiB

CONFIG = "model: {num_layers: 1, hidden_size: 64, num_attention_heads: 4, vocab_size: 500}\n"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[ProbeJob]:
    """Jobs that were measured; what comes of each is that it fits, or with a seed of 13 that it fails."""
    asked: list[ProbeJob] = []

    def run(job: ProbeJob) -> ProbeResult:
        asked.append(job)
        failure = Failure(kind="import", message="no module named x") if job.seed == 13 else None
        return ProbeResult(backend="virtual", outcome="error" if failure else "fits", failure=failure)

    monkeypatch.setattr(warm, "run", run)
    return asked


@pytest.fixture
def probe(tmp_path: Path) -> Probing:
    return Probing(tmp_path, {"backend": "virtual", "gpu": None})


def test_a_preset_with_settings(probe: Probing, jobs: list[ProbeJob]) -> None:
    result = probe("data.micro_batch_size=2", preset="gpt-tiny", limit="2 GiB", gpu="a100-40gb", iterations=3)
    (job,) = jobs
    assert isinstance(job.target, BundledTarget)
    assert job.target.config["data"]["micro_batch_size"] == 2
    assert (job.backend, job.limit_bytes, job.gpu, job.iterations) == ("virtual", 2 * GiB, "a100-40gb", 3)
    assert probe.results == [result]


def test_paths_begin_at_the_root_directory(probe: Probing, jobs: list[ProbeJob], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(CONFIG)
    (tmp_path / "harness.py").write_text("def setup(ctx):\n    return print\n")
    (tmp_path / "other").mkdir()
    probe("train.yaml")
    probe(Path("train.yaml"))
    probe(tmp_path / "train.yaml")
    probe(harness="harness.py")
    probe(harness=Path("harness.py"), repo="other")
    assert len(jobs) == 5
    targets = [job.target for job in jobs[3:]]
    assert targets == [
        HarnessTarget(harness=str(tmp_path / "harness.py"), repo=str(tmp_path)),
        HarnessTarget(harness=str(tmp_path / "harness.py"), repo=str(tmp_path / "other")),
    ]


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ((), {}, "no configuration given; name a YAML file"),
        (("none.yaml",), {}, "none.yaml: No such file"),
        ((), {"preset": "gpt-tiny", "harness": "harness.py"}, "bring"),
        ((), {"preset": "gpt-tiny", "repo": "."}, "--repo without"),
        ((), {"preset": "gpt-tiny", "limit": "2 gigs"}, 'device.limit is "2 gigs"'),
        ((), {"preset": "gpt-tiny", "rank": 7}, "no rank 7"),
        ((), {"harness": "h.py", "entry": "a:b"}, "both --harness and --entry"),
        (("probe.seed=13",), {"preset": "gpt-tiny"}, "gpt-tiny was not measured (import)\nno module named x"),
    ],
)
def test_what_cannot_be_measured_fails_the_test(
    probe: Probing, jobs: list[ProbeJob], words: tuple[str, ...], options: dict[str, str], said: str
) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        probe(*words, **options)
    assert said in str(failed.value)
    assert str(failed.value).count("\n") == 1
    assert probe.results == []
