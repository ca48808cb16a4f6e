"""Makes the directory that the commands of the pages speak of: a repository with tags, and the files that they name.

Everything in it is small, so that a probe takes a part of a second; sizes are large, for on a virtual card they
cost nothing.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.unit.bisect.repos import Repo

SNAPSHOTS = ROOT / "fixtures" / "snapshots"
CONFIG = """\
model: {num_layers: 1, hidden_size: 128, num_attention_heads: 4, vocab_size: 5000, max_position_embeddings: 256}
data: {seq_length: 128, micro_batch_size: %d, num_microbatches: 1}
probe: {iterations: 1}
"""
FITS, FAILS = CONFIG % 1000, CONFIG % 16000
CODE = """\
import os
import sys

import torch


def build(ctx):
    scale = float(os.environ.get("SCALE", 1))

    def step():
        return torch.empty(int(%d * 2**30 * scale), dtype=torch.uint8, device=ctx.device)

    return step
"""
PROGRAM = """\
import pathlib
import shutil

pathlib.Path("out").mkdir(exist_ok=True)
shutil.copy("recorded.pickle", "out/step-3.pickle")
print("peak: %d.0 GiB")
"""
HARNESS = """\
def setup(ctx):
    from tiny.train import build

    return build(ctx)
"""
REPAIR = """\
--- /dev/null
+++ b/repaired.txt
@@ -0,0 +1 @@
+by hand
"""
MEGATRON = """\
MODEL_ARGS:
  --num-layers: 1
  --hidden-size: 128
  --num-attention-heads: 4
  --seq-length: 128
  --max-position-embeddings: 128
  --micro-batch-size: 1
  --global-batch-size: 64
  --bf16: true
  --vocab-size: 5000
  --tokenizer-type: NullTokenizer
"""
BRIDGE = """\
model:
  num_layers: 1
  hidden_size: 128
  num_attention_heads: 4
  seq_length: 512
  vocab_size: 5000
mixed_precision: bf16_mixed
train: {micro_batch_size: %d, global_batch_size: 64000}
"""
SUITE = """\
cases:
  - {name: gpt-tiny, preset: gpt-tiny, overrides: [model.num_layers=1, probe.iterations=1]}
  - {name: ours, harness: ../harness.py, repo: .., limit: 80GiB}
"""
LAUNCH = """\
#!/bin/bash
TP_SIZE=2
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP_SIZE --num-layers 4 --hidden-size 512 \\
    --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 \\
    --global-batch-size 8 --vocab-size 32000 --bf16
"""
RECORDED = {
    "before": "v0.1",
    "after": "v0.2",
    "snapshot": "v0.2",
    "snap-0.oom": "v0.2",
    "virtual": "v0.2",
    "measured": "v0.2",
}
"""Snapshots that the pages name, and of which release of the demo's program they are."""


def make(place: Path) -> Path:
    """Make it, with the commit v1.2 checked out, and return it."""
    repo = Repo(place)
    sources = {
        "tiny/__init__.py": "",
        "setup.py": "open('built.txt', 'w').close()\n",
        "csrc/kernel.cpp": "",
        "Makefile": "all:\n\t@true\n",
        "check.sh": "#!/bin/sh\nexec grep -q 40.0 train.py\n",
        "recorded.pickle": gzip.decompress((SNAPSHOTS / "torch-2.6-wrapped.pickle.gz").read_bytes()),
    }
    (place / "check.sh").touch(mode=0o755)
    configs = ("cfg.yaml", "conf.yaml", "configs/train.yaml")
    good = {"tiny/train.py": CODE % 40, "train.py": PROGRAM % 40} | dict.fromkeys(configs, FITS)
    bad = {"tiny/train.py": CODE % 90, "train.py": PROGRAM % 90} | dict.fromkeys(configs, FAILS)
    repo.commit("Train", sources | good)
    repo.git("tag", "v1.2")
    for tag in ("v1.3", "v1.4", "v1.5"):  # the same tree, so that searches have two things to measure and no more
        repo.commit(f"Release {tag}", {})
        repo.git("tag", tag)
    repo.commit("Train on larger batches", bad)
    repo.git("checkout", "--quiet", "--detach", "v1.5")
    repo.commit("Repair", {"repaired.txt": "by hand\n"})
    repo.git("tag", "repair")
    repo.git("checkout", "--quiet", "--detach", "v1.2")
    _lay_out(place)
    return place


def _lay_out(place: Path) -> None:
    """Write what lies beside the repository's own files."""
    texts = {
        "harness.py": HARNESS,
        "good.yaml": FITS,
        "bad.yaml": FAILS,
        "good.env": "SCALE=0.5\n",
        "bad.env": "SCALE=1\n",
        "numpy2.patch": REPAIR,
        "args.yaml": MEGATRON,
        "launch.sh": LAUNCH,
        "yesterday.yaml": BRIDGE % 1000,
        "today.yaml": BRIDGE % 4000,
        "ci/memory.yaml": SUITE,
    }
    for name, text in texts.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    for name, release in RECORDED.items():
        recorded = SNAPSHOTS / f"tinytrain-{release}.pickle.gz"
        (place / f"{name}.pickle").write_bytes(gzip.decompress(recorded.read_bytes()))
    for name in ("snapshots", "monday", "tuesday"):
        shutil.copytree(SNAPSHOTS / "ranks", place / name)
    (place / "fixtures").symlink_to(ROOT / "fixtures")
    (place / "docs").symlink_to(ROOT / "docs")
    (place / "path" / "to").mkdir(parents=True)
    (place / "path" / "to" / "checkout").symlink_to(place)
    (place.parent / "my-project").symlink_to(place)
