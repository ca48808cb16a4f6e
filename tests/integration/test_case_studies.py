"""What real histories hold, on one small history: the real command line, and real probes on a virtual card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from tests.unit.bisect.repos import Repo

FIRST = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.nn.GELU()

    def forward(self, x):
        return self.act(x)
"""
REFACTORED = """
import torch

@torch.compile
def unused(x):
    return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = torch.nn.GELU()

    @torch.autocast("cuda", enabled=False)
    def forward(self, x):
        return self.activation(x)
"""
KEEPS_MORE = REFACTORED.replace("return self.activation(x)", "return self.activation(x) * x.sigmoid()")
HARNESS = """
import torch, oomscope
from model import Net

def setup(ctx):
    model = Net().to(ctx.device)
    x = torch.ones(1 << 20, device=ctx.device, requires_grad=True)
    return oomscope.Target(lambda: model(x).sum().backward(), model=model)
"""


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    whole = Repo(tmp_path / "whole")
    whole.commit("first", {"model.py": FIRST, "data.bin": "0123456789" * 1000})
    whole.commit("rename what is measured", {"model.py": REFACTORED})
    whole.commit("a gate", {"model.py": KEEPS_MORE})
    whole.git("config", "uploadpack.allowFilter", "true")
    whole.git("clone", "-q", "--bare", "--filter=blob:limit=4k", whole.path.as_uri(), str(tmp_path / "partial"))
    return tmp_path / "partial"


@pytest.mark.slow
def test_a_step_is_found_and_named_in_a_partial_clone_that_was_refactored(
    partial: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "harness.py").write_text(HARNESS)
    words = ["bisect", "HEAD~2..HEAD", "--repo", str(partial), "--harness", str(tmp_path / "harness.py")]
    status = run([*words, "--backend", "virtual", "--steps", "--json", "--quiet", "--state", str(tmp_path / "state")])
    found = json.loads(capsys.readouterr().out)
    assert status == ExitCode.OK, found
    assert found["untestable"] == []
    assert [row["label"] for row in found["steps"] if row["commit"]] == ["a gate"]
    assert (
        found["steps"][0]["dominant"]["site"]["line"]
        == REFACTORED.splitlines().index("        return self.activation(x)") + 1
    )
    assert sum("data.bin" in note for note in found["notes"]) == 1
