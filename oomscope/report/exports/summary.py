"""The summary of a result, below 2 KB and with the same keys for every command: for assistants and dashboards.

The sentences are those of the report. Where a document would be too long, texts are shortened and rows left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import singledispatch
from typing import Any, Final, TypeAlias

from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.search.measured import bytes_of
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import GRAVITY, Status
from oomscope.probe.result import ProbeResult
from oomscope.report.commands import bisect_sentences, diff, explain_sentences, gate_sentences, probe
from oomscope.report.sentences import shortened
from oomscope.report.verdict_text import code_lines
from oomscope.snapshot.compare.diff import Difference
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.sites import Site, SiteBytes
from oomscope.snapshot.verdict_types import Verdict

Summarised: TypeAlias = Explanation | RankSet | ProbeResult | Difference | BisectResult | GateResult
SCHEMA_VERSION: Final = 1
LARGEST: Final = 2000
"""Most bytes of a summary."""
DETAIL: Final = ((5, 400), (5, 160), (3, 120), (2, 80), (1, 40))
"""Rows of a list, and characters of a text, in the order in which they are tried until a document is small enough."""


@dataclass(frozen=True, kw_only=True)
class HeldLine:
    """A line of code and its requested bytes; in a comparison or a search, by how much they changed."""

    line: str
    category: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CaseSummary:
    """A case of the gate that is not as expected."""

    name: str
    status: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a command found. What is unknown, or no part of its answer, is null or empty."""

    command: str
    outcome: str
    """Outcome: ``fits``, ``oom`` or ``error`` (probe); ``oom`` or ``no_failure`` (explain); ``grew``, ``shrank`` or
    ``equal`` (diff); ``culprit``, ``no_culprit``, ``suspects``, ``ends_invalid`` or ``inconclusive`` (bisect);
    ``green``, ``red`` or ``not green`` (gate)."""
    answer: str
    """The heading of the report."""
    advice: str | None = None
    """What to do."""
    verdict: str | None = None
    """``capacity``, ``fragmentation``, ``outside``, ``host`` or ``headroom``."""
    cured_by: tuple[str, ...] = ()
    """Allocator settings that cure it, the preferred one first."""
    peak_requested_bytes: int | None = None
    """The peak: in a failed run before the failure, in a search that of the first bad run (like the differences, that
    of the run without a limit after a failure), in a comparison that of the second snapshot."""
    peak_reserved_bytes: int | None = None
    """The most that the allocator held."""
    available_bytes: int | None = None
    """Bytes that the process may use."""
    available_is_bound: bool = False
    """Whether ``available_bytes`` and ``margin_bytes`` are upper bounds."""
    margin_bytes: int | None = None
    """Bytes of ``available_bytes`` that were never reserved; None where memory ran out."""
    failed_bytes: int | None = None
    """The request that failed."""
    delta_requested_bytes: int | None = None
    """Difference between the two sides of a comparison or a search."""
    delta_reserved_bytes: int | None = None
    phase: str | None = None
    iteration: int | None = None
    line: str | None = None
    """Line of the failure, else of the peak."""
    commit: str | None = None
    """The commit at fault."""
    lines: tuple[HeldLine, ...] = ()
    """Lines with most bytes, at the failure or else at the peak."""
    cases: tuple[CaseSummary, ...] = ()
    """Cases, gravest first."""


def summary_of(result: Summarised) -> dict[str, Any]:
    """Return the summary of ``result`` as JSON values, below 2 KB."""
    summary = _summary(result)
    document: dict[str, Any] = {}
    for rows, width in DETAIL:
        document = {"schema_version": SCHEMA_VERSION, **_cut(asdict(summary), rows, width)}
        if len(json.dumps(document)) <= LARGEST:
            break
    return document


def _cut(value: Any, rows: int, width: int) -> Any:
    """Return JSON values with texts of at most ``width`` characters and lists of at most ``rows``."""
    if isinstance(value, dict):
        return {name: _cut(each, rows, width) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_cut(each, rows, width) for each in value[:rows]]
    return shortened(value, width) if isinstance(value, str) else value


@singledispatch
def _summary(result: Any) -> Summary:
    raise TypeError(f"no summary of {type(result).__name__}")


@_summary.register
def _(result: ProbeResult) -> Summary:
    peak, oom = result.peak, result.oom
    place = oom or peak
    return Summary(
        command="probe",
        outcome=result.outcome,
        answer=probe.status_text(result),
        advice=probe.result_advice(result),
        **_verdict(result.verdict),
        peak_requested_bytes=peak.requested_bytes if peak else None,
        peak_reserved_bytes=peak.reserved_bytes if peak else None,
        available_bytes=result.available_bytes,
        margin_bytes=result.margin_bytes if result.outcome == "fits" else None,
        failed_bytes=oom.requested_bytes if oom else None,
        **(_place(place.phase, place.iteration, place.site) if place else {}),
        lines=_held(peak.sites if peak else ()),
    )


@_summary.register
def _(result: Explanation) -> Summary:
    if not result.devices:
        return Summary(command="explain", outcome="no_failure", answer="nothing was allocated")
    device = min(result.devices, key=lambda each: (each.verdict.kind == "headroom", -each.peak.requested_bytes))
    failed = device.verdict.kind != "headroom"
    place = (device.failed_at if failed else None) or device.place
    return Summary(
        command="explain",
        outcome="oom" if failed else "no_failure",
        answer=explain_sentences.status_text(device),
        advice=explain_sentences.advice(device),
        **_verdict(device.verdict),
        peak_requested_bytes=device.peak.requested_bytes,
        peak_reserved_bytes=device.peak.reserved_bytes,
        available_bytes=device.available_bytes,
        available_is_bound=device.available_is_bound,
        margin_bytes=explain_sentences.margin_bytes(device),
        failed_bytes=device.verdict.requested_bytes,
        **_place(place.phase, place.iteration, place.site),
        lines=_held((device.failure or device.composition).sites),
    )


@_summary.register
def _(result: RankSet) -> Summary:
    return replace(_summary(result.worst), answer=explain_sentences.ranks_status_text(result))


@_summary.register
def _(result: Difference) -> Summary:
    device = result.devices[0]
    after = device.after
    changed = sorted((row for row in device.lines if row.delta_bytes), key=lambda row: -abs(row.delta_bytes))
    return Summary(
        command="diff",
        outcome="grew" if device.delta_bytes > 0 else "shrank" if device.delta_bytes < 0 else "equal",
        answer=diff.headline(device, result.phase),
        peak_requested_bytes=after.peak.requested_bytes,
        peak_reserved_bytes=after.peak.reserved_bytes,
        failed_bytes=after.failed_bytes,
        delta_requested_bytes=device.delta_bytes,
        delta_reserved_bytes=(after.peak - device.before.peak).reserved_bytes,
        **_place(after.phase, after.iteration, after.site),
        lines=tuple(HeldLine(line=str(row.site), category=row.category, bytes=row.delta_bytes) for row in changed),
    )


@_summary.register
def _(result: BisectResult) -> Summary:
    found = Summary(command="bisect", outcome=result.outcome, answer=bisect_sentences.heading(result))
    first_bad = found if result.first_bad is None else _summary(result.first_bad.result)
    whole = bytes_of(result.first_bad.result) if result.first_bad else None  # the run that the differences compare
    if whole is not None:
        first_bad = replace(
            first_bad, peak_requested_bytes=whole.requested_bytes, peak_reserved_bytes=whole.reserved_bytes
        )
    return replace(
        first_bad,
        command=found.command,
        outcome=found.outcome,
        answer=found.answer,
        advice=bisect_sentences.remedy(result) or first_bad.advice,
        delta_requested_bytes=result.change.requested_bytes if result.change else None,
        delta_reserved_bytes=result.change.reserved_bytes if result.change else None,
        commit=result.culprit.commit if isinstance(result.culprit, CommitCulprit) else None,
        lines=tuple(
            HeldLine(line=str(row.site or row.category), category=row.category, bytes=row.delta_bytes)
            for row in result.sites
        ),
    )


@_summary.register
def _(result: GateResult) -> Summary:
    odd = [case for case in result.cases if case.status is not Status.SAME]
    odd.sort(key=lambda case: GRAVITY.index(case.status))
    steps = gate_sentences.next_steps(result, gate_sentences.Commands.seen_from(result, None))
    culprit = next((case.culprit for case in odd if case.culprit and case.culprit.commit), None)
    return Summary(
        command="gate run",
        outcome=result.ruling.word.lower(),
        answer=gate_sentences.heading(result),
        advice=steps[0].text if steps else None,
        commit=culprit.commit if culprit else None,
        lines=tuple(
            HeldLine(line=str(row.site), category=row.category, bytes=row.delta_bytes)
            for row in (culprit.grown if culprit else ())
        ),
        cases=tuple(map(_case, odd)),
    )


def _case(case: CaseResult) -> CaseSummary:
    return CaseSummary(name=case.name, status=str(case.status), text=gate_sentences.headline(case))


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    return {} if verdict is None else {"verdict": verdict.kind, "cured_by": verdict.cured_by}


def _place(phase: str, iteration: int, site: Site | None) -> dict[str, Any]:
    known = iteration if iteration >= 0 else None
    return {"phase": phase or None, "iteration": known, "line": str(site) if site else None}


def _held(sites: Iterable[SiteBytes]) -> tuple[HeldLine, ...]:
    largest = code_lines(sites)[: DETAIL[0][0]]
    return tuple(HeldLine(line=str(row.site), category=row.category, bytes=row.bytes) for row in largest)
