"""Small data for each program, made on the spot: nothing is downloaded."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

Run = Callable[..., subprocess.CompletedProcess[str]]
MAKE = Path(__file__).parent / "make"
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


def torchtune(folder: Path, run: Run) -> None:
    """Write byte-level tokens, instructions, and a small model in torchtune's own format."""
    data = folder / "data" / "torchtune"
    data.mkdir(parents=True, exist_ok=True)
    tokens = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (data / "tokenizer.model").write_text("".join(tokens))
    rows = [{"instruction": _text(8, seed), "input": _text(8, -seed), "output": _text(30, seed)} for seed in range(200)]
    (data / "alpaca.json").write_text(json.dumps(rows))
    run("python", MAKE / "torchtune_model.py", data / "model.pt")


def litgpt(folder: Path, run: Run) -> None:
    """Write random tokens by litdata, which litgpt reads them with."""
    run("python", MAKE / "litgpt_tokens.py", folder / "data" / "litgpt", probed=False)


def peft(folder: Path, run: Run) -> None:
    """Write the model, tokenizer and datasets that run.py names, each as a local folder of that name."""

    def write(name: str, rows: list[dict[str, str]]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    query, answer = "query", "response"
    texts = [(_text(20, seed), _text(60, seed)) for seed in range(400)]
    plain = {"type": "", "original_question": ""}
    write("meta-math/MetaMathQA/train.jsonl", [plain | {query: one, answer: other} for one, other in texts])
    for split in ("train", "test"):
        rows = [{"question": one, "answer": other} for one, other in texts[:60]]
        write(f"openai/gsm8k/{split}.jsonl", rows)
    files = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in ("train", "test"))
    (folder / "openai/gsm8k/README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    write("HuggingFaceFW/finewiki/train.jsonl", [{"text": other} for _, other in texts[:100]])
    run(
        "python", MAKE / "llama.py", folder / "meta-llama/Llama-3.2-3B", stdin=json.dumps([other for _, other in texts])
    )
