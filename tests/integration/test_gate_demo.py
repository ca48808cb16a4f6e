"""The gate over the demo's history, on a virtual card: red, green, better, neither, and whose commit it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.demo.history import build
from oomscope.errors import ExitCode
from oomscope.units import MiB
from tests.forked import oomscope, probes
from tests.integration.program import commit, git

HARNESS = """\
from oomscope import Context, Target


def setup(ctx: Context) -> Target:
    from tinytrain.config import load_config
    from tinytrain.train import Trainer

    config = load_config(ctx.repo / "config.yaml")
    config.model.num_layers, config.model.vocab_size, config.model.hidden_size = 1, 1024, 256  # in less time
    trainer = Trainer(config, ctx.device)
    return Target(trainer.step, model=trainer.model, optimizer=trainer.optimizer)
"""
SUITE = """\
cases:
  - name: tinytrain
    harness: harness.py
    repo: tinytrain
    overrides: [probe.backend=virtual, probe.iterations=1]
"""
BUFFER = 'self.register_buffer("seen", torch.zeros(512 * 1024))  # 1 MiB in bf16'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite beside the demo's repository."""
    place = tmp_path_factory.mktemp("gate")
    build(place / "tinytrain")
    (place / "harness.py").write_text(HARNESS)
    (place / "memory.yaml").write_text(SUITE)
    return place


def check_out(place: Path, subject: str) -> str:
    """Check out the commit with this subject and return its hash."""
    repo = place / "tinytrain"
    found = git(repo, "log", "--format=%H", f"--grep=^{subject}$", "main")
    git(repo, "checkout", "--quiet", "--detach", found)
    return found


def gate(capsys, place: Path, command: str, *words: str) -> tuple[int, dict]:
    capsys.readouterr()
    suite = [] if command == "history" else [str(place / "memory.yaml"), "--quiet"]
    ledger = ["--ledger", str(place / "gate.sqlite")] if command in {"run", "history"} else []
    with probes():
        code = run(["gate", command, *suite, *ledger, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_a_history_is_reported_correctly(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo = place / "tinytrain"
    check_out(place, "Say how to run it")
    assert gate(capsys, place, "update") == (
        ExitCode.OK,
        {
            "schema_version": 1,
            "accepted": ["tinytrain"],
            "left": {},
            "removed": [],
            "baseline": str(place / "memory.baseline.yaml"),
        },
    )

    green = check_out(place, "Move attention into its own file")
    code, night = gate(capsys, place, "run")
    assert (code, night["cases"][0]["status"]) == (ExitCode.OK, "same")

    model = (repo / "tinytrain" / "model.py").read_text()
    grown = model.replace("from torch import nn", "import torch\nfrom torch import nn", 1).replace(
        "        self.norm = nn.LayerNorm(config.hidden_size)\n",
        f"        self.norm = nn.LayerNorm(config.hidden_size)\n        {BUFFER}\n",
    )
    culprit = commit(repo, "Count what was seen", {"tinytrain/model.py": grown})
    commit(repo, "Describe what is counted", {"NOTES.md": "What was seen is counted.\n"})
    result = place / "night.json"
    code, night = gate(capsys, place, "run", "--bisect", "--result", str(result))
    (case,) = night["cases"]
    live = case["metrics"][0]
    assert (code, case["status"]) == (ExitCode.REGRESSION, "worse")
    assert (live["name"], live["status"], live["difference"]) == ("peak_requested", "worse", MiB)
    assert case["first_values"] == case["values"]
    assert (case["culprit"]["good"], case["culprit"]["commit"]) == (green, culprit)
    assert case["culprit"]["site"].startswith("tinytrain/build.py:12 ")  # where the model goes to the device

    accepted = oomscope("gate", "update", place / "memory.yaml", "--from", result, "--accept", "tinytrain")
    assert (accepted.returncode, accepted.stdout) == (ExitCode.OK, "accepted: tinytrain\n")
    check_out(place, "Move attention into its own file")
    code, night = gate(capsys, place, "run", "--strict")
    (case,) = night["cases"]
    assert (code, case["status"], case["metrics"][0]["difference"]) == (ExitCode.IMPROVED, "better", -MiB)

    check_out(place, "Ask the batch for its length")
    code, night = gate(capsys, place, "run")
    assert (code, night["cases"][0]["status"]) == (ExitCode.TARGET_FAILED, "untestable")
    assert "No module named 'tinytrain.lengths'" in night["cases"][0]["reason"]

    _, history = gate(capsys, place, "history")
    (trend,) = history["trends"]
    assert [entry["status"] for entry in trend["nights"]] == ["same", "worse", "better", "untestable"]
    assert [entry["change"] for entry in trend["nights"]] == [None, MiB, -MiB, None]
    assert trend["nights"][0]["commit"] == green
