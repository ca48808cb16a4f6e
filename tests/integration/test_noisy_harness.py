"""A harness that answers wrongly at every fifth probe, whatever the commit: the commit is found all the same."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.program import commit, new_repo, oomscope

HARNESS = """\
from pathlib import Path

import torch
from oomscope import Context, Target

MIB = 2**20
COUNT = Path(__file__).parent / "count"


def setup(ctx: Context) -> Target:
    from size import SIZE

    count = int(COUNT.read_text()) + 1 if COUNT.exists() else 1
    COUNT.write_text(str(count))
    size = 112 - SIZE if count % 5 == 0 else SIZE

    def step() -> None:
        torch.empty(size * MIB, dtype=torch.uint8, device=ctx.device).fill_(0)

    return Target(step)
"""
CULPRIT = 6


def test_the_commit_is_found_although_every_fifth_probe_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text(HARNESS)
    repo = new_repo(tmp_path / "repo")
    commits = [
        commit(repo, f"commit {place}", {"size.py": f"SIZE = {96 if place >= CULPRIT else 16}\n# {place}\n"})
        for place in range(9)
    ]
    arguments = ["--repo", repo, "--harness", tmp_path / "harness.py", "--backend", "sim", "--bad", "live>64MiB"]
    ends = f"{commits[0]}..{commits[-1]}"

    done = oomscope("bisect", ends, *arguments, "--confidence", "0.95", "--state", tmp_path / "state", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["culprit"]["commit"] == commits[CULPRIT]
    assert int((tmp_path / "count").read_text()) == len(document["probes"]) >= 5
    posterior = document["posterior"]
    assert posterior["confidence"] >= posterior["wanted"] == 0.95
    assert len(posterior["rows"]) == 8
    wrong = [
        probe for probe in document["probes"] if (probe["commit"] in commits[CULPRIT:]) != (probe["answer"] == "bad")
    ]
    assert wrong, "an answer was wrong"
