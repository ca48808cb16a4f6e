"""A harness of ten lines drives a repository that knows nothing of oomscope; its code changes, no configuration."""

from __future__ import annotations

import json

import pytest

from tests.forked import oomscope
from tests.integration.program import commit, git, new_repo

HARNESS = """\
import torch
from oomscope import Context, Target


def setup(ctx: Context) -> Target:
    from tiny import TinyGPT, train_step

    model = TinyGPT().to(ctx.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    return Target(lambda: train_step(model, optimizer, ctx.device), model=model, optimizer=optimizer)
"""
MODEL = """\
import torch
from torch import nn
from torch.nn import functional as F

from attention import attend

LENGTH, WIDTH, HEADS, LAYERS, VOCABULARY = 1024, 256, 4, 4, 8000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + self.out(attend(*heads).transpose(1, 2).flatten(2))


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def train_step(model, optimizer, device):
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH), device=device)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FUSED = """\
from torch.nn import functional as F


def attend(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)
"""
WRITTEN_OUT = """\
def attend(query, key, value):
    weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).float().softmax(-1)
    return weights.to(value.dtype) @ value
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """The commits by what they do, and the document of the bisect."""
    folder = tmp_path_factory.mktemp("harness")
    (folder / "harness.py").write_text(HARNESS)
    repo = new_repo(folder / "repo")
    commits = {
        "good": commit(repo, "start", {"src/tiny.py": MODEL, "src/attention.py": FUSED}),
        "words": commit(repo, "words", {"README.md": "words"}),
        "culprit": commit(repo, "write attention out", {"src/attention.py": WRITTEN_OUT}),
        "comment": commit(repo, "comment", {"src/attention.py": "# Softmax in fp32.\n" + WRITTEN_OUT}),
        "bad": commit(repo, "more words", {"README.md": "more words"}),
    }
    before = git(repo, "status", "--porcelain"), sorted(path.name for path in (repo / "src").iterdir())
    arguments = ["--repo", repo, "--harness", folder / "harness.py", "--limit", "512MiB", "--backend", "virtual"]
    done = oomscope("bisect", f"{commits['good']}..main", *arguments, "device.non_torch_bytes=0", "--json")
    assert done.returncode == 0, done.stderr
    assert before == (git(repo, "status", "--porcelain"), sorted(path.name for path in (repo / "src").iterdir()))
    return commits, json.loads(done.stdout)


def test_the_commit_that_changed_the_code_is_found(answer) -> None:
    commits, document = answer
    assert document["outcome"] == "culprit"
    assert document["culprit"]["commit"] == commits["culprit"]
    assert document["culprit"]["subject"] == "write attention out"


def test_the_lines_that_grew_sum_to_the_growth_and_name_the_code(answer) -> None:
    _, document = answer
    culprit = document["culprit"]
    assert culprit["delta"]["requested_bytes"] > 0
    assert sum(row["delta_bytes"] for row in culprit["sites"]) == culprit["delta"]["requested_bytes"]
    assert any(row["site"] and row["site"]["file"].endswith("attention.py") for row in culprit["sites"])


def test_the_steps_sum_to_the_difference_of_the_ends(answer) -> None:
    commits, document = answer
    live = {probe["commit"]: probe["peak"]["requested_bytes"] for probe in document["probes"]}
    total = sum(step["delta"]["requested_bytes"] for step in document["steps"])
    assert total == live[commits["bad"]] - live[commits["good"]]


def test_the_kind_is_capacity(answer) -> None:
    _, document = answer
    assert document["verdict"]["kind"] == "capacity"
