"""Receipts of processes that never ran."""

from __future__ import annotations

from typing import Any

from oomscope.probe.targets.program.execution import Ended
from oomscope.probe.targets.program.receipt import Receipt

MiB = 1 << 20


def receipt(peak: int = 100 * MiB, **fields: Any) -> Receipt:
    """Return the receipt of a process that held ``peak`` bytes on the card and was stopped after three steps."""
    stats = {"allocated_bytes.all.peak": peak} if peak else {}
    known = {
        "pid": 7,
        "parent": 1,
        "argv": ["python", "train.py"],
        "began_ns": 1,
        "torch_version": "2.15.0",
        "cuda_version": "13.0",
        "state": "stopped",
        "is_cuda_initialised": bool(peak),
        "iterations": 3,
        "steps": 3,
        "optimizers": 1,
        "stats": stats,
        "parameters_on_card": peak // 2,
    }
    return Receipt(**known | fields)


def ended(*receipts: Receipt, status: int = 0) -> Ended:
    """Return how a program of these processes ended."""
    return Ended(status=status, killed=False, receipts=receipts, seconds=1.0)
