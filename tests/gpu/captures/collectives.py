"""What NCCL keeps on the card outside the caching allocator, in processes of their own, which are ended if they hang.

    python -m tests.gpu.captures.collectives RANK RANKS FILE

A group of one process shows what the library takes for itself. Two ranks on one card are tried as well; NCCL may refuse
them ("Duplicate GPU detected", ``init.cc``), and what it says is then the answer.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.captures import which_card  # noqa: F401 - before torch

# isort: split
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 40.0
"""A group that takes longer is ended."""
KILLED_S = 5.0
ELEMENTS = 8 << 20
RANKS = (1, 2)


def measured(folder: Path, ranks: Sequence[int] = RANKS, *, seconds: float = SECONDS) -> dict[str, Any]:
    """Return by number of ranks what each rank told, or why it told nothing."""
    return {str(number): _group(folder / f"store-{number}", number, seconds) for number in ranks}


def _group(store: Path, ranks: int, seconds: float) -> list[Any]:
    command = [sys.executable, "-m", "tests.gpu.captures.collectives"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    running = [subprocess.Popen([*command, str(rank), str(ranks), store], **pipes) for rank in range(ranks)]
    until = time.monotonic() + seconds
    return [_answer(process, max(0.1, until - time.monotonic())) for process in running]


def _answer(process: subprocess.Popen[str], seconds: float) -> Any:
    try:
        said, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the driver is left behind
            process.wait(KILLED_S)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
        return {"failed": "it did not come to an end"}
    lines = said.strip().splitlines()
    if process.returncode == 0 and lines:
        return json.loads(lines[-1])
    told = [line for line in complaint.strip().splitlines() if line.strip()]
    return {"failed": next((line for line in told if "Duplicate GPU" in line), told[-1] if told else "no word")}


def outside() -> int:
    """Return the bytes that are used on the card and not the caching allocator's, of all processes."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


def run(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Return the bytes outside the allocator after each step of one rank, and NCCL's version."""
    torch.cuda.set_device(0)
    held = torch.ones(ELEMENTS, device="cuda")
    steps = {"context": outside()}
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    steps["group"] = outside()
    gathered = torch.empty(ELEMENTS * ranks, device="cuda")
    scattered = torch.empty(ELEMENTS // ranks, device="cuda")
    for name, call in (
        ("all_reduce", lambda: dist.all_reduce(held)),
        ("all_gather", lambda: dist.all_gather_into_tensor(gathered, held)),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(scattered, held)),
        ("all_to_all", lambda: dist.all_to_all_single(torch.empty_like(held), held)),
    ):
        call()
        steps[name] = outside()
    dist.destroy_process_group()
    steps["destroyed"] = outside()
    return {"nccl": torch.cuda.nccl.version(), "outside_bytes": steps}


if __name__ == "__main__":
    signal.alarm(int(SECONDS))  # also where nobody is left to end it
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])), flush=True)
