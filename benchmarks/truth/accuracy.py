"""The virtual card against a real one: peaks, segments, the place of the peak, and whether it fits a limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.truth.matrix import CASES, Case
from benchmarks.truth.measuring import Bench, table
from benchmarks.truth.slack import NotApplicableError, reserved_by_order
from oomscope.probe.result import ProbeResult
from oomscope.units import GiB

LIMITS = (0.97, 1.03)
"""Of what was reserved on the card at most without a limit: the allocator may reserve so much."""
ALLOCATED, RESERVED = 0.01, 0.03
"""How far off the virtual card may be, as shares of the real one's."""
_METRICS = ("requested_bytes", "allocated_bytes", "reserved_bytes")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One configuration on both cards."""

    case: Case
    virtual: ProbeResult
    card: ProbeResult
    by_order: dict[str, int] = field(default_factory=dict)
    """The virtual card's reserved peak by the order of the driver's addresses; empty where there is no such band."""
    no_band: str = "not known"
    """Why there is none."""

    def error(self, metric: str) -> float | None:
        """Return how far the virtual card's peak is off, as a share of the real one's; None where one is missing."""
        if self.virtual.peak is None or self.card.peak is None:
            return None
        on_card = getattr(self.card.peak, metric)
        return float((getattr(self.virtual.peak, metric) - on_card) / on_card)

    @property
    def is_within(self) -> bool:
        """Whether allocated and reserved peaks are as near as they should be."""
        errors = self.error("allocated_bytes"), self.error("reserved_bytes")
        return all(
            error is not None and abs(error) <= bar for error, bar in zip(errors, (ALLOCATED, RESERVED), strict=True)
        )

    @property
    def is_in_band(self) -> bool:
        """Whether the orders of addresses reach what the card reserved."""
        if not self.by_order or self.card.peak is None or self.card.peak.reserved_bytes is None:
            return False
        return min(self.by_order.values()) <= self.card.peak.reserved_bytes <= max(self.by_order.values())

    def deviations(self) -> list[str]:
        """Return in what the virtual card misses its targets; nothing where a peak is missing, which fails."""
        allocated, reserved = self.error("allocated_bytes"), self.error("reserved_bytes")
        if allocated is None or reserved is None:
            return []
        told = [f"allocated {_percent(allocated)}"] if abs(allocated) > ALLOCATED else []
        if abs(reserved) > RESERVED and not self.is_in_band:
            told.append(f"reserved {_percent(reserved)}")
        return told if self.same_place else [*told, "the peak is at another place"]

    @property
    def same_place(self) -> bool:
        """Whether the peak is in the same phase and at the same line."""
        return _place(self.virtual) == _place(self.card)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.case.name,
            "overrides": self.case.overrides,
            "errors": {metric: self.error(metric) for metric in _METRICS},
            "is_within": self.is_within,
            "same_place": self.same_place,
            "reserved_by_address_order": self.by_order or self.no_band,
            "deviations": self.deviations(),
            "virtual": self.virtual.to_json(),
            "card": self.card.to_json(),
        }


def _place(result: ProbeResult) -> tuple[object, ...] | None:
    peak = result.peak
    if peak is None:
        return None
    return peak.phase, (peak.site.file, peak.site.line) if peak.site else None


def run(
    bench: Bench, cases: Sequence[Case] = CASES, keep: Callable[[dict[str, Any]], None] = lambda _document: None
) -> dict[str, Any]:
    """Measure all pairs, and each under limits around what it needs; snapshots are kept of those that are off.

    What a process holds outside the allocator can only be told while no other begins: the first pair is measured alone
    and speaks for all. What went wrong beside others is tried once more alone.
    """
    pairs: list[Pair] = []
    answers: list[dict[str, Any]] = []

    def document() -> dict[str, Any]:
        rows = [pair.to_json() for pair in pairs]
        told = {"failed": bench.failed, "deviations": deviations(pairs, answers), "table": _table(pairs, answers)}
        return {"pairs": rows, "limits": answers, **told}

    def keep_pairs(done: list[Pair]) -> None:
        pairs[1:] = done
        keep(document())

    def keep_answers(done: list[dict[str, Any]]) -> None:
        answers[:] = done
        keep(document())

    pairs += bench.each(cases[:1], lambda case: _pair(bench, case), name=_name)
    alone = pairs[0].card if pairs else None
    keep_pairs(bench.each(cases[1:], lambda case: _pair(bench, case, alone), name=_name, keep=keep_pairs))
    for at, pair in enumerate(pairs):
        if pair.card.outcome != "fits" or pair.virtual.outcome != "fits":
            pairs[at : at + 1] = bench.each([pair.case], lambda case: _pair(bench, case, alone), name=_name) or [pair]
    fitting = [pair for pair in pairs if pair.card.outcome == "fits" and pair.virtual.outcome == "fits"]
    wanted = [(pair, share) for pair in fitting for share in LIMITS]
    keep_answers(
        bench.each(
            wanted,
            lambda item: _under_limit(bench, *item),
            name=lambda item: f"{item[0].case.name} under {item[1]}",
            keep=keep_answers,
        )
    )
    return document()


def _name(case: Case) -> str:
    return case.name


def _pair(bench: Bench, case: Case, alone: ProbeResult | None = None) -> Pair:
    """Measure a configuration on both; ``alone``: a result of the card that was measured without others beside it."""
    config = case.config()
    name = case.name.replace(" ", "-").replace(",", "")
    files = {side: bench.folder / f"{name}-{side}.pickle.gz" for side in ("card", "virtual")}
    card = bench.measured(config, bench.card, snapshot=files["card"])
    outside = alone or card
    like = replace(card, non_torch_bytes=outside.non_torch_bytes, other_process_bytes=outside.other_process_bytes or 0)
    virtual = bench.measured(config, "virtual", snapshot=files["virtual"], like=like)
    by_order, no_band = _by_order(case, files["virtual"])
    pair = Pair(case=case, card=card, virtual=virtual, by_order=by_order, no_band=no_band)
    if pair.is_within and pair.same_place:
        for file in files.values():
            file.unlink(missing_ok=True)
    return pair


def deviations(pairs: Sequence[Pair], answers: Sequence[dict[str, Any]]) -> list[str]:
    """Return what misses the targets, a sentence for each configuration, and for each limit answered differently."""
    told = [f"{pair.case.name}: {', '.join(found)}" for pair in pairs if (found := pair.deviations())]
    return told + [
        f"{answer['name']} under {answer['share']}: virtual {answer['virtual']}, real {answer['card']}"
        for answer in answers
        if answer["virtual"] != answer["card"]
    ]


def _by_order(case: Case, snapshot: Path) -> tuple[dict[str, int], str]:
    """Return the band that addresses make of a peak, or why there is none; the pair is worth having alone."""
    try:
        return (reserved_by_order(snapshot) if snapshot.exists() else {}), "not known"
    except NotApplicableError as error:
        return {}, f"not applicable: {error}"
    except Exception as error:  # noqa: BLE001
        print(f"{case.name}: no band of address orders: {error!r}", file=sys.stderr)
        return {}, "not known"


def _under_limit(bench: Bench, pair: Pair, share: float) -> dict[str, Any]:
    """Return whether both cards say the same where the allocator may reserve ``share`` of the pair's peak.

    The limit is the allocator's own setting, since one of the card's size goes by what others hold meanwhile.
    """
    total, peak = pair.card.limit_bytes, pair.card.peak
    if not total or peak is None or peak.reserved_bytes is None:
        raise ValueError("the card told no total or no peak")
    limit = int(share * peak.reserved_bytes)
    fraction = f"per_process_memory_fraction:{(limit + 0.5) / total!r}"
    conf = ",".join(filter(None, (pair.case.config().allocator.conf, fraction)))
    config = pair.case.config([f"allocator.conf={conf}"])
    card = bench.measured(config, bench.card)
    alone = replace(card, non_torch_bytes=0, other_process_bytes=0)
    virtual = bench.measured(config, "virtual", like=alone, demand=False)
    verdicts = [result.verdict.kind if result.verdict else None for result in (virtual, card)]
    return {
        "name": pair.case.name,
        "share": share,
        "limit_bytes": limit,
        "virtual": virtual.outcome,
        "card": card.outcome,
        "virtual_verdict": verdicts[0],
        "card_verdict": verdicts[1],
        "failures": [result.failure.message for result in (virtual, card) if result.failure],
    }


def _table(pairs: Sequence[Pair], answers: Sequence[dict[str, Any]]) -> str:
    def row(pair: Pair) -> list[str]:
        mine = [answer for answer in answers if answer["name"] == pair.case.name]
        agreeing = sum(answer["virtual"] == answer["card"] for answer in mine)
        order = _band(pair)
        peaks = [_gib(pair.card.peak and getattr(pair.card.peak, metric)) for metric in _METRICS]
        errors = [_percent(pair.error(metric)) for metric in _METRICS]
        cells = [f"{peak} ({error})" for peak, error in zip(peaks, errors, strict=True)]
        segments = f"{pair.card.segments} / {pair.virtual.segments}"
        failed = [result.failure.message for result in (pair.card, pair.virtual) if result.failure]
        place = failed[0] if failed else "same" if pair.same_place else "differs"
        return [pair.case.name, *cells, order, segments, place, f"{agreeing} of {len(mine)}"]

    header = (
        *("configuration", "live", "allocated", "reserved", "reserved by order of addresses"),
        *("segments", "place of the peak", "same answer"),
    )
    return table(header, map(row, pairs))


def _band(pair: Pair) -> str:
    """Return how far off the virtual card's reserved peak is at least and at most, whatever the order of addresses."""
    if not pair.by_order:
        return pair.no_band
    if pair.card.peak is None or not pair.card.peak.reserved_bytes:
        return "not known"
    shares = [peak / pair.card.peak.reserved_bytes - 1 for peak in pair.by_order.values()]
    return f"{_percent(min(shares))} to {_percent(max(shares))}"


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / GiB:.3f}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:+.2f} %"
