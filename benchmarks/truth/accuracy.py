"""Simulated against measured: peaks, segments, categories, the place of the peak, and whether it fits a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.truth.matrix import CASES, Case
from benchmarks.truth.measuring import Bench, measured, table
from oomscope.probe.result import ProbeResult
from oomscope.units import GiB

LIMITS = (0.97, 1.03)
"""Of what the card reserved at most without a limit: the card has this much for the allocator."""
ALLOCATED, RESERVED = 0.01, 0.03
"""How far off the simulation may be."""
_METRICS = ("requested_bytes", "allocated_bytes", "reserved_bytes")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One configuration on both backends."""

    case: Case
    sim: ProbeResult
    card: ProbeResult

    def error(self, metric: str) -> float | None:
        """Return how far the simulated peak is off, as a share of the card's; None where one is missing."""
        if self.sim.peak is None or self.card.peak is None:
            return None
        on_card = getattr(self.card.peak, metric)
        return float((getattr(self.sim.peak, metric) - on_card) / on_card)

    @property
    def is_within(self) -> bool:
        """Whether allocated and reserved peaks are as near as they should be."""
        errors = self.error("allocated_bytes"), self.error("reserved_bytes")
        return all(
            error is not None and abs(error) <= bar for error, bar in zip(errors, (ALLOCATED, RESERVED), strict=True)
        )

    @property
    def same_place(self) -> bool:
        """Whether the peak is in the same phase and at the same line."""
        return _place(self.sim) == _place(self.card)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.case.name,
            "overrides": self.case.overrides,
            "errors": {metric: self.error(metric) for metric in _METRICS},
            "is_within": self.is_within,
            "same_place": self.same_place,
            "sim": self.sim.to_json(),
            "card": self.card.to_json(),
        }


def _place(result: ProbeResult) -> tuple[object, ...] | None:
    peak = result.peak
    if peak is None:
        return None
    return peak.phase, (peak.site.file, peak.site.line) if peak.site else None


def run(bench: Bench, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """Measure all pairs, and each under limits around what it needs; snapshots are kept of those that are off."""
    pairs = bench.each(cases, lambda case: _pair(bench, case))
    fitting = [pair for pair in pairs if pair.card.outcome == "fits" and pair.sim.outcome == "fits"]
    wanted = [(pair, share) for pair in fitting for share in LIMITS]
    answers = bench.each(wanted, lambda item: _under_limit(bench, *item))
    return {"pairs": [pair.to_json() for pair in pairs], "limits": answers, "table": _table(pairs, answers)}


def _pair(bench: Bench, case: Case) -> Pair:
    config = case.config()
    name = case.name.replace(" ", "-").replace(",", "")
    files = {side: bench.folder / f"{name}-{side}.pickle.gz" for side in ("card", "sim")}
    card = measured(config, bench.card, snapshot=files["card"])
    pair = Pair(case=case, card=card, sim=measured(config, "sim", snapshot=files["sim"], like=card))
    if pair.is_within and pair.same_place:
        for file in files.values():
            file.unlink(missing_ok=True)
    return pair


def _under_limit(bench: Bench, pair: Pair, share: float) -> dict[str, Any]:
    """Return whether both backends say the same of a card with ``share`` of what the pair's peak reserved."""
    outside = (pair.card.non_torch_bytes or 0) + (pair.card.other_process_bytes or 0)
    limit = int(share * (pair.card.peak.reserved_bytes if pair.card.peak else 0)) + outside
    config = pair.case.config([f"device.limit={limit}"])
    card = measured(config, bench.card)
    sim = measured(config, "sim", like=replace(card, non_torch_bytes=pair.card.non_torch_bytes))
    verdicts = [result.verdict.kind if result.verdict else None for result in (sim, card)]
    return {
        "name": pair.case.name,
        "share": share,
        "limit_bytes": limit,
        "sim": sim.outcome,
        "card": card.outcome,
        "sim_verdict": verdicts[0],
        "card_verdict": verdicts[1],
        "failures": [result.failure.message for result in (sim, card) if result.failure],
    }


def _table(pairs: Sequence[Pair], answers: Sequence[dict[str, Any]]) -> str:
    def row(pair: Pair) -> list[str]:
        mine = [answer for answer in answers if answer["name"] == pair.case.name]
        agreeing = sum(answer["sim"] == answer["card"] for answer in mine)
        peaks = [_gib(pair.card.peak and getattr(pair.card.peak, metric)) for metric in _METRICS]
        errors = [_percent(pair.error(metric)) for metric in _METRICS]
        cells = [f"{peak} ({error})" for peak, error in zip(peaks, errors, strict=True)]
        segments = f"{pair.card.segments} / {pair.sim.segments}"
        failed = [result.failure.message for result in (pair.card, pair.sim) if result.failure]
        place = failed[0] if failed else "same" if pair.same_place else "differs"
        return [pair.case.name, *cells, segments, place, f"{agreeing} of {len(mine)}"]

    header = ("configuration", "live", "allocated", "reserved", "segments", "place of the peak", "same answer")
    return table(header, map(row, pairs))


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / GiB:.3f}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:+.2f} %"
