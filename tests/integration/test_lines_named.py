"""A line that begins to allocate is named, and not the one below it, which holds what it held."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.forked import oomscope
from tests.integration.program import commit, new_repo

HARNESS = """\
import torch
from oomscope import Target


def setup(ctx):
    from net import Net

    net = Net().to(ctx.device)
    return Target(lambda: net(torch.zeros(256, 64, device=ctx.device)).backward(), model=net)
"""
NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            pass
            x = torch.relu(y)
        return x.sum()
"""
LINE = NET.splitlines().index("            pass") + 1


def test_a_line_that_begins_to_allocate_is_named(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    commit(repo, "before", {"net.py": NET})
    commit(repo, "after", {"net.py": NET.replace("pass", "y = y.exp()")})
    (tmp_path / "harness.py").write_text(HARNESS)
    asked = [
        "--repo",
        repo,
        "--harness",
        tmp_path / "harness.py",
        "--bad",
        "requested>32.9MiB",
        "--backend",
        "virtual",
    ]
    done = oomscope("bisect", "HEAD~..HEAD", *asked, "--steps", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    grew = Counter[int]()
    for row in document["sites"]:
        grew[row["site"]["line"]] += row["delta_bytes"]
    assert sum(grew.values()) == document["change"]["requested_bytes"]
    assert grew[LINE] == max(grew.values()) > 0
    assert all(bytes_ <= 0 for line, bytes_ in grew.items() if line != LINE), grew
    (step,) = document["steps"]
    assert step["dominant"]["site"]["line"] == LINE
