"""Two iterations of a small decoder with everything recorded, once for each way and allocator setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.gpu.captures import history
from tests.gpu.captures.decoder import Shape, Way, named, training

ITERATIONS = 2

WAYS: tuple[dict[str, Any], ...] = (
    {"name": "flash"},
    {"name": "flash-swiglu-rms-gqa", "activation": "swiglu", "norm": "RMSNorm", "num_query_groups": 4},
    {"name": "flash-dropout", "dropout": 0.1},
    {"name": "cudnn", "attention": "cudnn"},
    {"name": "efficient", "attention": "efficient"},
    {"name": "unfused", "attention": "unfused", "seq_length": 1024},
    {"name": "unfused-dropout", "attention": "unfused", "dropout": 0.1, "seq_length": 1024},
    {"name": "checkpointed", "recompute": "full"},
    {"name": "checkpointed-unfused", "recompute": "full", "attention": "unfused", "seq_length": 1024},
    {"name": "fused-adam", "optimizer": "fused"},
    {"name": "single-adam", "optimizer": "single"},
    {"name": "sgd", "optimizer": "sgd"},
    {"name": "fp32", "precision": "fp32", "attention": "efficient"},
    {"name": "autocast", "precision": "autocast"},
    {"name": "microbatches", "num_microbatches": 3},
    {"name": "no-clip", "clip_grad": 0.0},
)
SETTINGS = ("", "expandable_segments:True")
"""Every way is captured under each."""
MORE_SETTINGS = {
    "flash": ("max_split_size_mb:128", "roundup_power2_divisions:4"),
    "microbatches": ("garbage_collection_threshold:0.6",),
}
"""By way: the settings that it is captured under as well."""
LIMIT_OF_GC = 4 << 30
"""Garbage is collected only under a limit (``set_per_process_memory_fraction``); ``microbatches`` needs
3.8 GiB of it, and has some collected on the way."""


def items() -> list[dict[str, Any]]:
    """Return what is captured: a way under a setting each."""
    return [
        {**way, "conf": conf, "file": f"training-{way['name']}-{history.short(conf)}.pickle.gz"}
        for way in WAYS
        for conf in (*SETTINGS, *MORE_SETTINGS.get(way["name"], ()))
    ]


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Train as ``spec`` says, write its snapshot, and return its numbers."""
    torch.cuda.init()
    if spec["conf"].startswith("garbage_collection"):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_OF_GC / total))
    history.start()
    work = training(Shape(**named(Shape, spec)), Way(**named(Way, spec)), "cuda")
    for _ in range(ITERATIONS):
        work.step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    history.save(Path(spec["folder"]) / spec["file"])
    return {**spec, "folder": None, "stats": stats}
