"""What one operation allocates and frees on the card, and what cuBLAS keeps: the evidence for tables of temporaries."""

from __future__ import annotations

import gc
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.gpu.captures.operations import FAMILIES, Call, Place
from tests.gpu.captures.running import so_far

WORKSPACES = ("", ":4096:8", ":16:8", ":0:0")
"""Values of ``CUBLAS_WORKSPACE_CONFIG``; empty leaves it unset."""


def items() -> list[dict[str, Any]]:
    """Return what is measured: each family of operations, and each setting of the workspace."""
    families = [{"name": name, "kind": "family", "conf": ""} for name in FAMILIES]
    spaces = [{"name": f"workspace{value}", "kind": "workspace", "conf": "", "config": value} for value in WORKSPACES]
    return [*families, *spaces]


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure what ``spec`` names."""
    if spec["kind"] == "workspace":
        return {**spec, **workspace(spec["config"])}
    torch.cuda.init()
    torch.manual_seed(1234)
    gc.freeze()  # what was imported is no garbage: to look through it takes 0.1 s at each operation
    rows: list[dict[str, Any]] = []
    try:
        for name, call in FAMILIES[spec["name"]](Place("cuda")):
            so_far(
                spec, {**spec, "rows": rows, "failed": f"ended without a word after {len(rows)} operations: in {name}"}
            )
            rows.append({"op": name, **measured(call)})
    except Exception as error:  # noqa: BLE001 # the operations before it are worth having
        return {**spec, "rows": rows, "failed": f"after {len(rows)} operations: {error!r}"}
    return {**spec, "rows": rows}


def measured(call: Call) -> dict[str, Any]:
    """Return the requested bytes before, at most during, and after the second ``call``, and what it allocated.

    The first call pays what is paid once: workspaces, handles, plans.
    """
    try:
        first = _watched(call)
        return {"first": first["events"], **_watched(call)}
    except Exception as error:  # noqa: BLE001 # the operations behind it are worth having
        return {"error": (str(error) or repr(error)).splitlines()[0]}


def _watched(call: Call) -> dict[str, Any]:
    gc.collect()
    _settle()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, clear_history=True)  # type: ignore[call-arg]
    left = call()
    _settle()
    after = torch.cuda.memory_stats()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]  # type: ignore[no-untyped-call]
    torch.cuda.memory._record_memory_history(enabled=None)
    del left
    moved = [[event["action"], event["size"]] for event in trace if event["action"] in {"alloc", "free_requested"}]
    return {
        "before": before["requested_bytes.all.current"],
        "peak": after["requested_bytes.all.peak"],
        "after": after["requested_bytes.all.current"],
        "events": moved,
    }


def _settle() -> None:
    """Wait for the card, and until autograd's thread has let go of the last tensors of the backward before.

    It does so after ``backward()`` has returned, and before it begins another: this one, which allocates nothing.
    """
    leaf, output, gradient = _nothing()
    torch.autograd.grad(output, leaf, gradient, retain_graph=True)
    torch.cuda.synchronize()


@cache
def _nothing() -> tuple[Tensor, Tensor, Tensor]:
    """Return a leaf, a view of it and the view's gradient."""
    leaf = torch.zeros(1, device="cuda", requires_grad=True)
    return leaf, leaf.view(1), torch.ones(1, device="cuda")


def workspace(config: str) -> dict[str, Any]:
    """Return what is allocated by the first products of a process, on two streams, under one setting."""
    if config:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = config
    torch.cuda.init()
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(256, device="cuda", dtype=torch.bfloat16)
    torch.cuda.memory._record_memory_history(enabled="all", context=None)  # type: ignore[call-arg]
    seen = {}
    side = torch.cuda.Stream()
    for name, call in (
        ("mm", lambda: torch.mm(x, x)),
        ("mm_again", lambda: torch.mm(x, x)),
        ("addmm", lambda: torch.nn.functional.linear(x, x, bias)),
        ("mm_fp32", lambda: torch.mm(x.float(), x.float())),
        ("bmm", lambda: torch.bmm(x[None], x[None])),
    ):
        seen[name] = _grown(call)
    with torch.cuda.stream(side):
        seen["mm_other_stream"] = _grown(lambda: torch.mm(x, x))
        seen["addmm_other_stream"] = _grown(lambda: torch.nn.functional.linear(x, x, bias))
    torch._C._cuda_clearCublasWorkspaces()
    seen["cleared"] = torch.cuda.memory_stats()["requested_bytes.all.current"]
    return {"seen": seen}


def _grown(call: Call) -> int:
    """Return the requested bytes that stay after ``call`` though its result is gone."""
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"] - before)
