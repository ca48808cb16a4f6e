"""What recomputation and offloading cost on a card, beside the estimate; one run at a time on the card, where time is
measured, while the virtual card runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from benchmarks.truth.matrix import Case
from benchmarks.truth.measuring import Bench, table
from oomscope.probe.result import ProbeResult
from oomscope.units import GiB

SHAPE = (
    *("model.num_layers=16", "model.hidden_size=2048", "model.num_attention_heads=32", "model.num_query_groups=8"),
    *("model.ffn_hidden_size=8192", "model.vocab_size=128256", "data.seq_length=4096", "data.micro_batch_size=2"),
    *("data.num_microbatches=2", "probe.iterations=5"),
)
"""That of a model of 1.2 billion parameters, on one card."""
_SELECTIVE = "recompute.recompute_granularity=selective"
_FULL = "recompute.recompute_granularity=full"
_UNFUSED = ("model.attention_backend=unfused", "data.seq_length=2048")


def _case(name: str, *overrides: str) -> Case:
    return Case(name=name, overrides=(*SHAPE, *overrides))


RECOMPUTE = (
    _case("no recomputation"),
    _case("selective core_attn", _SELECTIVE, "recompute.recompute_modules=[core_attn]"),
    _case("selective mlp", _SELECTIVE, "recompute.recompute_modules=[mlp]"),
    _case("selective layernorm", _SELECTIVE, "recompute.recompute_modules=[layernorm]", "model.transformer_impl=local"),
    _case("full uniform 1", _FULL, "recompute.recompute_method=uniform", "recompute.recompute_num_layers=1"),
    _case("full uniform 4", _FULL, "recompute.recompute_method=uniform", "recompute.recompute_num_layers=4"),
    _case("full block 8", _FULL, "recompute.recompute_method=block", "recompute.recompute_num_layers=8"),
    _case("unfused", *_UNFUSED),
    _case("unfused, selective core_attn", *_UNFUSED, _SELECTIVE, "recompute.recompute_modules=[core_attn]"),
)
OFFLOAD = (
    _case("no offloading"),
    *(
        _case(
            f"optimizer offload {fraction}",
            "optimizer.optimizer_cpu_offload=true",
            f"optimizer.optimizer_offload_fraction={fraction}",
        )
        for fraction in (0.25, 0.5, 0.75, 1.0)
    ),
    _case("layers offloaded", "offload.cpu_offloading=true", "offload.cpu_offloading_num_layers=8"),
    _case(
        "fine-grained offload",
        "offload.fine_grained_activation_offloading=true",
        "offload.offload_modules=[qkv_linear,core_attn]",
    ),
    _case("expandable segments", "allocator.conf=expandable_segments:True"),
)


Timed = tuple[Case, ProbeResult, ProbeResult | None]
"""A configuration on the card and on the virtual one; None where that raised, or is not there yet."""


def run(
    bench: Bench, cases: Sequence[Case], keep: Callable[[dict[str, Any]], None] = lambda _document: None
) -> dict[str, Any]:
    """Measure ``cases``, of which the first is what the others are compared with (and ``unfused`` what its own is)."""
    with ThreadPoolExecutor(max(1, bench.at_once)) as pool:

        def one(case: Case) -> tuple[Case, ProbeResult, Future[ProbeResult]]:
            card = bench.measured(case.config(), bench.card)
            return case, card, pool.submit(bench.measured, case.config(), "virtual", like=card)

        def finished(rows: Sequence[tuple[Case, ProbeResult, Future[ProbeResult]]]) -> list[Timed]:
            return [
                (case, card, virtual.result() if virtual.done() and not virtual.exception() else None)
                for case, card, virtual in rows
            ]

        rows = bench.each(
            cases,
            one,
            at_once=1,
            name=lambda case: case.name,
            keep=lambda rows: keep(_document(bench, finished(rows), cases[0].name)),
        )
    for case, _, virtual in rows:
        if error := virtual.exception():
            bench.fails(f"{case.name}, virtual", error)
    return _document(bench, finished(rows), cases[0].name if cases else "")


def _document(bench: Bench, rows: Sequence[Timed], first: str) -> dict[str, Any]:
    timed = [
        {"name": case.name, "card": card.to_json(), "virtual": virtual and virtual.to_json()}
        for case, card, virtual in rows
    ]
    return {"rows": timed, "failed": bench.failed, "table": _table(rows, first)}


def _table(rows: Sequence[Timed], first: str) -> str:
    found = {case.name: (card, virtual) for case, card, virtual in rows}
    lines = []
    for case, card, virtual in rows:
        base, base_virtual = found.get("unfused" if case.name.startswith("unfused") else first, (None, None))
        peak = f"{card.peak.reserved_bytes / GiB:.2f}" if card.peak else "?"
        seconds = f"{card.step_time_s * 1000:.0f} ms" if card.step_time_s else "?"
        speed = f"{card.tflops_per_s:.0f}" if card.tflops_per_s else "?"
        slower = _slower(card.step_time_s, base and base.step_time_s)
        told = _slower(virtual and virtual.cost.get("seconds"), base_virtual and base_virtual.cost.get("seconds"))
        lines.append([case.name, peak, seconds, speed, slower, told])
    header = ("configuration", "reserved, GiB", "step", "TFLOP/s", "slower", "slower by the estimate")
    return table(header, lines)


def _slower(seconds: float | None, before: float | None) -> str:
    return f"{100 * (seconds / before - 1):+.1f} %" if seconds and before else "?"
