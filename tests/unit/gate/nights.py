"""Suites, measurements and nights as the tests need them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from oomscope.gate.baseline import Baseline, Entry, Key
from oomscope.gate.night.result import CaseResult, GateResult, MeasuredCommit
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import values_of
from oomscope.gate.suite.schema import MetricBands
from oomscope.gate.suite.suite import Case, Suite
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import ErrorKind, Failure, Oom, Peak, ProbeResult, ReservedPeak
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import GiB

VERSIONS = {"torch": "2.13.0"}


def case(name: str = "tiny", **fields: Any) -> Case:
    """A case of the smallest preset."""
    bands = {metric: MetricBands.model_validate(said) for metric, said in fields.pop("bands", {}).items()}
    given = {"kind": "preset", "source": "gpt-tiny", "repo": None, "overrides": (), "asked": ()} | fields
    given = {"extras": {}, "chooses": bool(given["asked"])} | given
    return Case(name=name, bands=bands, folder=Path(), where="memory.yaml:2", **given)


def suite(*cases: Case) -> Suite:
    return Suite(path=Path("memory.yaml"), cases=cases or (case(),))


def measured(live: int = GiB, reserved: int | None = None, **fields: Any) -> ProbeResult:
    """A run that fits."""
    reserved = live if reserved is None else reserved
    highest = ReservedPeak(
        reserved_bytes=reserved,
        requested_bytes=live,
        iteration=0,
        phase="forward",
        microbatch=0,
        event=0,
        reserved_then_bytes=reserved,
    )
    given = {"backend": "virtual", "gpu": "h100-80gb", "versions": VERSIONS, "pinned_bytes": 0} | fields
    return ProbeResult(outcome="fits", peak=peak(live, reserved), reserved_peak=highest, **given)


def peak(live: int, reserved: int) -> Peak:
    return Peak(
        requested_bytes=live,
        allocated_bytes=live,
        active_bytes=live,
        reserved_bytes=reserved,
        iteration=0,
        phase="forward",
        microbatch=0,
        site=None,
        event=0,
    )


def out_of_memory(live: int = GiB, demand: int | None = None) -> ProbeResult:
    """A run that fails with ``live`` bytes, whose demand may be known."""
    oom = Oom(requested_bytes=1, iteration=0, phase="forward", microbatch=0, site=None, message="no more")
    verdict = Verdict(
        kind="capacity",
        headline="Too much.",
        requested_bytes=1,
        live_requested_bytes=live,
        available_bytes=live,
        reserved_bytes=live,
    )
    whole = None if demand is None else peak(demand, demand)
    fits = measured(live)
    return replace(fits, outcome="oom", oom=oom, verdict=verdict, demand_bytes=demand, demand_peak=whole)


def failed(kind: ErrorKind = "import", message: str = "no module") -> ProbeResult:
    return ProbeResult(backend="virtual", outcome="error", failure=Failure(kind=kind, message=message))


def entry(of: Case, result: ProbeResult, **fields: Any) -> Entry:
    """What is expected where ``result`` was accepted for the case ``of``."""
    outcome = "oom" if result.outcome == "oom" else "fits"
    values = {name: value for name, value in values_of(result).items() if name in of.counted}
    return Entry(**{"key": Key.of(of.digest, result), "outcome": outcome, "values": values, **fields})


def baseline(of: Case, result: ProbeResult, **fields: Any) -> Baseline:
    return Baseline(entries={of.name: (entry(of, result, **fields),)})


def played(*results: ProbeResult | Exception) -> Callable[[ProbeJob, threading.Event], ProbeResult]:
    """A probe that says or raises these one after the other, the last one for ever."""
    left = list(results)

    def probe(_job: ProbeJob, _stop: threading.Event) -> ProbeResult:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return probe


def night(number: int = 0, *cases: CaseResult) -> GateResult:
    """A night; later numbers are later nights."""
    return GateResult(
        night=f"night{number:04}",
        started=f"2026-01-{1 + number % 28:02}T0{number // 28 % 10}:00:00+00:00",
        suite="/repo/memory.yaml",
        baseline="memory.baseline.yaml",
        cases=cases or (case_result(number),),
    )


def case_result(number: int = 0, status: Status = Status.SAME, *, name: str = "tiny", live: int = GiB) -> CaseResult:
    result = measured(live)
    return CaseResult(
        name=name,
        status=status,
        key=Key.of("d" * 16, result),
        outcome="fits",
        expected_outcome="fits",
        values=values_of(result),
        standing=MeasuredCommit(commit=f"{number:040x}", subject=f"Change {number}"),
    )
