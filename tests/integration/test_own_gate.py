"""The project's own nightly gate: its workflows, its suite, and one cheap case of it against the baseline."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from oomscope.cli.main import run
from oomscope.config.presets import preset_names
from oomscope.errors import ExitCode
from oomscope.gate.baseline import load_baseline
from oomscope.gate.suite.metrics import METRICS
from oomscope.gate.suite.suite import load_suite
from tests.forked import probes

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
SUITE, BASELINE = GITHUB / "memory-gate.yaml", GITHUB / "memory-gate.baseline.yaml"
TORCH = re.search(r"^torch==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]


def test_the_suite_covers_every_preset_and_every_case_was_accepted() -> None:
    suite, accepted = load_suite(SUITE), load_baseline(BASELINE)
    assert {case.source for case in suite.cases} == set(preset_names())
    for case in suite.cases:
        entries = accepted.entries[case.name]
        assert [entry.key.config for entry in entries] == [case.digest]
        assert [entry.key.torch.partition("+")[0] for entry in entries] == [TORCH], (
            "accept it anew with oomscope gate update"
        )
    assert len(accepted.entries) == len(suite.cases)


def test_one_case_is_what_was_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.__version__.partition("+")[0] != TORCH:
        pytest.skip(f"the baseline is of torch {TORCH}, this is {torch.__version__}")
    with probes():
        code = run(["gate", "run", str(SUITE), "--case", "gpt-tiny", "--no-ledger", "--quiet", "--json"])
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert (code, case["status"], case["reason"]) == (ExitCode.OK, "same", "")
    assert {row["name"] for row in case["metrics"]} <= set(METRICS)


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").iterdir()), ids=lambda path: path.name)
def test_the_workflows_name_what_is_there(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    steps = yaml.safe_dump([step for job in document["jobs"].values() for step in job["steps"]])
    named = set(re.findall(r"(?<![\w/])(?:\.ci|\.github|fixtures|oomscope)/[\w./-]+", steps))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert document["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in document["jobs"].values())
