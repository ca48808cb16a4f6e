"""Programs that others wrote, none of them changed by a line, each probed once on a virtual H100.

    python benchmarks/programs/run.py [NAME…] [--checkouts DIR] [--python PYTHON]

PYTHON has torch and the packages that a program needs (the table names them); DIR holds the checkouts that it names:
``git clone`` of karpathy/nanoGPT, karpathy/nanochat, pytorch/torchtitan, huggingface/peft (at d787f51bb^: later its
run.py asserts what a loss is), NVIDIA/Megatron-LM (which needs Python 3.12). What is not there is skipped by name. Data
are made on the spot. Prints a table; the exit status is 1 where a program that ran has no answer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OWN = HERE / "own"
NANOGPT = (
    "train.py --dataset=tiny --max_iters=3 --n_layer=4 --n_embd=256 --n_head=4 --batch_size=4 --block_size=256 "
    "--compile=False --eval_iters=1 --gradient_accumulation_steps=2"
)
TITAN = (
    "python -m torchtitan.train --module llama3 --config llama3_debugmodel --parallelism.tensor_parallel_degree 2 "
    "--training.steps 3 --metrics.log_freq 1"
)
EXPERTS = "python -m torchtitan.train --module qwen3 --config qwen3_moe_debug --training.steps 3 --metrics.log_freq 1"
NANOCHAT = (
    "python -m scripts.base_train --depth 2 --aspect-ratio 32 --head-dim 32 --max-seq-len 256 --device-batch-size 2 "
    "--total-batch-size 1024 --num-iterations 4 --eval-every -1 --core-metric-every -1 --sample-every -1"
)
LITGPT = (
    "litgpt pretrain pythia-14m --data LitData --data.data_path data/litgpt --data.split_names ['train','val'] "
    "--train.max_seq_length 512 --train.micro_batch_size 4 --train.global_batch_size 8 --train.max_tokens 100000 "
    "--eval.max_iters 1 --eval.initial_validation false --logger_name csv --out_dir data/litgpt-out"
)
PEFT = "env PYTHONPATH=../../src HF_HUB_OFFLINE=1 python run.py experiments/lora/llama-3.2-3B-rank32"
MEGATRON = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 512 "
    "--max-position-embeddings 512 --position-embedding-type rope --micro-batch-size 2 --global-batch-size 8 "
    "--train-iters 5 --lr 1e-4 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 1000 --split 99,1,0 "
    "--eval-iters 0 --eval-interval 100 --no-gradient-accumulation-fusion"
)
LOCAL = "--transformer-impl local --clip-grad 0.0 --no-persist-layer-norm --no-masked-softmax-fusion --no-rope-fusion"
PARALLEL = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer"


@dataclass(frozen=True)
class Program:
    """A program as one starts it."""

    command: str
    packages: str
    """What it imports beside torch, the first one decides whether it can run."""
    checkout: str = ""
    """Its folder among the checkouts; empty for a loop of a few lines around an installed package."""
    options: str = ""
    """Of ``oomscope probe``."""
    data: str = ""
    """The function of ``data`` that makes what it reads."""


PROGRAMS = {
    "nanogpt": Program(f"python {NANOGPT}", "numpy", "nanoGPT", data="nanogpt"),
    "nanogpt-compiled": Program(
        f"python {NANOGPT.replace('False', 'True')}", "triton numpy", "nanoGPT", data="nanogpt"
    ),
    "nanogpt-ddp": Program(f"torchrun --standalone --nproc-per-node 2 {NANOGPT}", "numpy", "nanoGPT", data="nanogpt"),
    "nanochat": Program(NANOCHAT, "rustbpe tiktoken wandb kernels pyarrow", "nanochat", data="nanochat"),
    "torchtitan": Program(
        TITAN, "tyro grain spmd_types torch_checkpointing", "torchtitan", "--rank 3 --world-size 8", "torchtitan"
    ),
    "torchtitan-experts": Program(
        f"{EXPERTS} --parallelism.expert_parallel_degree 4 --training.disable_cuda_graphs",
        "tyro grain spmd_types torch_checkpointing",
        "torchtitan",
        "--rank 3 --world-size 8",
        "torchtitan",
    ),
    "torchtune": Program(
        "tune run lora_finetune_single_device --config torchtune.yaml", "torchtune torchao datasets", data="torchtune"
    ),
    "litgpt": Program(LITGPT, "litgpt litdata triton", data="litgpt"),
    "peft": Program(
        PEFT, "bitsandbytes transformers datasets accelerate", "peft/method_comparison/MetaMathQA", data="peft"
    ),
    "megatron": Program(
        f"env CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --standalone --nproc-per-node 1 {MEGATRON} {LOCAL}",
        "pybind11 triton einops",
        "Megatron-LM",
    ),
    "megatron-parallel": Program(
        f"env CUDA_DEVICE_MAX_CONNECTIONS=1 python {MEGATRON} {LOCAL} {PARALLEL}",
        "pybind11 triton einops",
        "Megatron-LM",
        "--rank 4 --world-size 8",
    ),
    "megatron-te": Program(
        f"env CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --standalone --nproc-per-node 1 {MEGATRON}",
        "transformer_engine pybind11 triton einops",
        "Megatron-LM",
    ),
    "trainer": Program("python trainer.py", "transformers accelerate"),
    "experts-mixtral": Program("python experts.py mixtral", "transformers"),
    "experts-qwen3": Program("python experts.py qwen3", "transformers"),
    "experts-deepseek": Program("python experts.py deepseek", "transformers"),
    "lightning": Program("python lightning_loop.py", "lightning"),
    "accelerate": Program("accelerate launch accelerate_loop.py", "accelerate"),
    "accelerate-ddp": Program("accelerate launch --num_processes 2 --multi_gpu accelerate_loop.py", "accelerate"),
    "trl-peft": Program("python sft.py", "trl peft"),
    "trl-dpo": Program("python dpo.py", "trl"),
    "deepspeed-1": Program("python zero.py 1", "deepspeed"),
    "deepspeed-2": Program("python zero.py 2", "deepspeed"),
    "deepspeed-3": Program("python zero.py 3", "deepspeed"),
}


@dataclass(frozen=True)
class Place:
    """Where programs run."""

    python: Path
    checkouts: Path
    timeout: int

    def folder(self, program: Program) -> Path:
        """Return the working directory of a program."""
        return self.checkouts / program.checkout if program.checkout else OWN

    def lacks(self, program: Program) -> str:
        """Return what a program needs and cannot have; empty where it has all."""
        if not self.folder(program).is_dir():
            return f"no checkout {self.folder(program)}"
        package = program.packages.split()[0]
        find = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
        return f"no package {package}" if subprocess.run([self.python, "-c", find], check=False).returncode else ""

    def run(
        self, *command: str | Path, cwd: Path, options: str = "", stdin: str = "", probed: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command by the place's Python, under a probe unless told otherwise."""
        probe = f"-m oomscope probe --backend virtual --gpu h100-80gb --timeout {self.timeout} --json --quiet {options}"
        argv: list[str | Path] = [*((sys.executable, *probe.split(), "--") if probed else ()), *command]
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "NANOCHAT_BASE_DIR": str(cwd / "oomscope_base")}
        argv[0] = argv[0] if probed else str(self.python)
        streams = {"input": stdin, "capture_output": True, "text": True}
        return subprocess.run(argv, check=False, cwd=cwd, env=environment, **streams)  # type: ignore[call-overload]


def row(name: str, place: Place) -> tuple[str, bool]:
    """Probe a program; return a row of the table, and whether it has an answer or was skipped."""
    program = PROGRAMS[name]
    if lack := place.lacks(program):
        return f"| {name} | skipped: {lack} | | |", True
    cwd = place.folder(program)
    if program.data:
        make = getattr(importlib.import_module("data"), program.data)
        make(cwd, lambda *command, **how: place.run(*command, cwd=cwd, **how))
    began = time.monotonic()
    done = place.run(*program.command.split(), cwd=cwd, options=program.options)
    seconds = time.monotonic() - began
    result = json.loads(done.stdout) if done.stdout else {}
    if result.get("outcome") not in ("fits", "oom"):
        why = (result.get("failure") or {}).get("message") or done.stderr.strip()
        return f"| {name} | no answer: {why} | | {seconds:.0f} |", False
    peak = result["peak"]
    return f"| {name} | {peak['requested_bytes'] / 2**20:,.2f} MiB | {peak['phase']} | {seconds:.0f} |", True


def main() -> int:
    """Probe the programs that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help=", ".join(PROGRAMS))
    parser.add_argument("--checkouts", type=Path, default=Path.cwd())
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--timeout", type=int, default=300)
    given = parser.parse_args()
    if unknown := set(given.name) - set(PROGRAMS):
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    place = Place(given.python.absolute(), given.checkouts.absolute(), given.timeout)
    print("| program | peak | phase | seconds |\n|---|---|---|---|")
    answered = True
    for name in given.name or PROGRAMS:
        text, is_well = row(name, place)
        print(text, flush=True)
        answered &= is_well
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(main())
