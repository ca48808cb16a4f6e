"""The stages of a pipeline peak at what Megatron-LM's do, to the kilobyte.

Megatron-LM 0.20 with the layers of TransformerEngine 2.20.2 and torch 2.15 ran as a program on a virtual H100, one rank
of each case: requested bytes after the first step, and at the peak of the second.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.allocator.settings import parse_version
from oomscope.torch_versions import KEEPS_WORKSPACES
from oomscope.units import KiB
from tests import forked

torch = pytest.importorskip("torch")
BASE = (
    "python pretrain_gpt.py --use-mcore-models --hidden-size 1024 --num-attention-heads 8 --group-query-attention "
    "--num-query-groups 4 --ffn-hidden-size 2816 --swiglu --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --seq-length 2048 "
    "--max-position-embeddings 2048 --position-embedding-type rope --micro-batch-size 1 --global-batch-size 8 "
    "--lr 1e-4 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000 --no-gradient-accumulation-fusion "
    "--no-create-attention-mask-in-dataloader --attention-backend fused --pipeline-model-parallel-size 4"
)
KERNELS = 17 * KiB
"""Bytes by which seeds, batches and scales of the loss differ."""


@pytest.mark.skipif(parse_version(torch.__version__) <= KEEPS_WORKSPACES, reason="measured with torch 2.15")
@pytest.mark.parametrize(
    ("layers", "rank", "after_the_step", "peak"),
    [(4, 0, 836801820, 1120310632), (8, 1, 467739932, 875079046), (8, 3, 1057582376, 1587369352)],
    ids=["first", "middle", "last"],
)
def test_a_stage_peaks_where_megatron_does(tmp_path: Path, layers: int, rank: int, after_the_step: int, peak: int):
    arguments = tmp_path / "arguments.txt"
    arguments.write_text(f"{BASE} --num-layers {layers}\n", encoding="utf-8")
    words = ("probe", "--from", "megatron", arguments, "--world-size", "4", "--rank", str(rank), "--json", "--quiet")
    without_torchs_workspace = "device.cublas_workspace_config=:0:0"  # TransformerEngine's products have their own
    done = forked.oomscope(*words, "--gpu", "h100-80gb", without_torchs_workspace)
    result = json.loads(done.stdout)
    assert result["end_requested_bytes"] == pytest.approx(after_the_step, abs=KERNELS)
    assert result["peak"]["requested_bytes"] == pytest.approx(peak, abs=KERNELS)
