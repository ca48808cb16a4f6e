"""Small data for each program, made on the spot: nothing is downloaded."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

Run = Callable[..., subprocess.CompletedProcess[str]]
_WORDS = ["memory", "card", "train", "model", "layer", "token", "step", "batch", "grad"]


def _text(words: int, seed: int) -> str:
    draw = random.Random(seed)  # noqa: S311
    return " ".join(f"{draw.choice(_WORDS)}{draw.randrange(50)}" for _ in range(words))


def nanogpt(checkout: Path, run: Run) -> None:
    """Write token files as ``data/*/prepare.py`` would."""
    folder = checkout / "data" / "tiny"
    folder.mkdir(exist_ok=True)
    for name in ("train", "val"):
        np.random.default_rng(0).integers(0, 50257, 20_000, dtype=np.uint16).tofile(folder / f"{name}.bin")


def torchtitan(checkout: Path, run: Run) -> None:
    """Write the dataset ``c4_test`` where a checkout lacks it."""
    file = checkout / "tests" / "assets" / "c4_test" / "data.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps({"text": _text(400, seed)}) + "\n" for seed in range(2000)))


def nanochat(checkout: Path, run: Run) -> None:
    """Write two shards, and train the tokenizer by nanochat's own script; a probe only starts it here."""
    folder = checkout / "oomscope_base" / "base_data_climbmix"
    folder.mkdir(parents=True, exist_ok=True)
    rows = json.dumps([_text(300, seed) for seed in range(400)])
    write = (
        "import json, sys, pyarrow as pa, pyarrow.parquet as pq\n"
        "table = pa.table({'text': json.load(sys.stdin)})\n"
        "for name in sys.argv[1:]: pq.write_table(table, name, row_group_size=100)\n"
    )
    shards = [str(folder / f"shard_{number:05d}.parquet") for number in range(2)]
    run("python", "-c", write, *shards, stdin=rows, probed=False)
    run("python", "-m", "scripts.tok_train", "--max-chars", "300000", "--vocab-size", "600")
