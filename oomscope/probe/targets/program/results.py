"""From what a process of a program left to what any run of a target gives: a measurement, and how the run ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from oomscope.errors import SnapshotError
from oomscope.probe.analysis.analyse import RULES
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.probe.measurement import DeviceBudget, Ending, FailedAllocation, Measurement, RefusedElsewhere, Unanswered
from oomscope.probe.recording.categorise import Told
from oomscope.probe.recording.reading import Recorded, RecordedRefusal
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.result import Failure, RankSummary
from oomscope.probe.targets.program.execution import Ended
from oomscope.probe.targets.program.receipt import Receipt
from oomscope.probe.targets.program.representative import failure_in, ran_out, representative
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Category, Frame, Moment
from oomscope.units import format_size


def ending_of(
    ended: Ended, settings: SessionSettings, budget: DeviceBudget | None, iterations: int, rank: int | None = None
) -> Ending:
    """Return how the run of a program ended.

    Args:
        ended: how its processes ended.
        settings: how they were measured.
        budget: the virtual card that they had; None where it was a real one.
        iterations: how many iterations were asked for.
        rank: which rank of a world that it started is reported; None for the worst.

    Raises:
        SnapshotError: a snapshot that they left cannot be read.
    """
    receipt = representative(ended.receipts, rank)
    failure = failure_in(ended, rank)
    if failure is not None or receipt is None:
        return Ending(measurement=None, failure=failure)
    if not receipt.snapshot:
        return Ending(measurement=None, failure=_unwritten(receipt))
    measurement = _measurement(receipt, settings, budget)
    others = [each for each in ended.receipts if each is not receipt and each.peak_bytes]
    is_of_world = (receipt.world_size or 1) > 1
    measurement = replace(
        measurement,
        rank=receipt.rank if is_of_world else None,
        world_size=receipt.world_size if is_of_world else None,
        ranks=_ranks(ended.receipts, measurement.device) if is_of_world else (),
        unanswered=_unanswered(ended.receipts),
        other_peaks=tuple(sorted((each.peak_bytes for each in others), reverse=True)),
        notes=(*measurement.notes, *_notes(ended, receipt, iterations, others)),
    )
    return Ending(measurement=measurement, out_of_memory=_out_of_memory(receipt, measurement))


def _ranks(receipts: Sequence[Receipt], device: DeviceBudget) -> tuple[RankSummary, ...]:
    """Return one row a rank, of the process that speaks for it."""
    ranks = sorted({each.rank for each in receipts if each.rank is not None and each.peak_bytes})
    return tuple(_summary(speaker, device) for rank in ranks if (speaker := representative(receipts, rank)))


def _summary(receipt: Receipt, device: DeviceBudget) -> RankSummary:
    reserved, failed = receipt.stats.get("reserved_bytes.all.peak", 0), ran_out(receipt)
    return RankSummary(
        rank=receipt.rank or 0,
        outcome="oom" if failed else "fits",
        requested_bytes=receipt.stats.get("requested_bytes.all.peak"),
        reserved_bytes=reserved,
        margin_bytes=device.available_bytes - reserved,
        message=f"asked for {format_size(receipt.refused.requested_bytes)}" if failed and receipt.refused else "",
    )


def _unwritten(receipt: Receipt) -> Failure:
    if receipt.raised is not None:
        return Failure(kind="step", message=receipt.raised.text, detail=receipt.raised.details)
    return Failure(kind="crash", message="; ".join(["what was recorded could not be written", *receipt.notes]))


def _measurement(receipt: Receipt, settings: SessionSettings, budget: DeviceBudget | None) -> Measurement:
    index = receipt.device or 0
    snapshot = load_snapshot(receipt.snapshot)
    if settings.is_recorded and not any(trace.device == index for trace in snapshot.traces):
        raise SnapshotError(
            f"nothing of cuda:{index} was recorded",
            where=receipt.snapshot,
            remedy="leave torch.cuda.memory._record_memory_history to oomscope while it measures",
        )
    said = json.loads(Path(receipt.snapshot).with_suffix(".json").read_text())
    recorded = Recorded(
        snapshot=snapshot,
        index=index,
        told=tuple(Told(address, number, Category(category)) for address, number, category in said["told"]),
        allocations=said["allocations"],
        workspaces=receipt.workspaces,
        stats=receipt.stats,
        refusal=_refusal(receipt, index),
        max_entries=settings.max_entries,
    )
    seen = _shared(budget, receipt) if budget else DeviceBudget(**(receipt.budget or {}))
    return replace(
        recorded.measurement(seen.under(receipt.fraction)),
        pinned_bytes=receipt.pinned_bytes,
        versions=_versions(receipt),
        notes=tuple(receipt.notes),
    )


def _shared(budget: DeviceBudget, receipt: Receipt) -> DeviceBudget:
    """Return a virtual card as the process saw it when it was refused memory: less what its other processes held."""
    refused = receipt.refused
    if refused is None or (receipt.devices or 1) > 1:
        return budget
    others = budget.limit_bytes - budget.non_torch_bytes - refused.held_bytes - refused.free_bytes
    return replace(budget, other_process_bytes=max(others, budget.other_process_bytes))


def _versions(receipt: Receipt) -> dict[str, str]:
    """Return the versions of the program's torch, which may be another than oomscope's, and whose rules count then."""
    versions = {"torch": receipt.torch_version, "cuda": str(receipt.cuda_version)} | receipt.versions
    major_minor = ".".join(receipt.torch_version.split(".")[:2])
    return versions if major_minor == installed_torch() else versions | {RULES: major_minor}


def _unanswered(receipts: Sequence[Receipt]) -> Unanswered:
    """Return what the card could not answer all processes: what one of them reads may decide what another asks for."""
    documents = [receipt.unanswered for receipt in receipts if receipt.unanswered]

    def all_of(name: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(document[name] for document in documents)))

    return Unanswered(
        reads=sum(document["reads"] for document in documents),
        read_bytes=sum(document["read_bytes"] for document in documents),
        lines=tuple(dict.fromkeys(Frame(*line) for document in documents for line in document["lines"])),
        unsupported=all_of("unsupported"),
        unknown_workspaces=all_of("unknown_workspaces"),
    )


def _refusal(receipt: Receipt, index: int) -> RecordedRefusal | None:
    refused = receipt.refused
    if refused is None or refused.device != index or not refused.snapshot:
        return None
    return RecordedRefusal(
        requested_bytes=refused.requested_bytes,
        free_bytes=refused.free_bytes,
        moment=Moment(*refused.moment),
        snapshot=load_snapshot(refused.snapshot),
    )


def _out_of_memory(receipt: Receipt, measurement: Measurement) -> FailedAllocation | RefusedElsewhere | None:
    if not ran_out(receipt):
        return None
    refusal = receipt.raised.refusal if receipt.raised else None
    if refusal is None:
        return measurement.oom
    if refusal["failed_in"] == "device" and measurement.oom is not None:
        return replace(measurement.oom, message=refusal["message"])
    return RefusedElsewhere(
        failed_in="program" if refusal["failed_in"] == "device" else refusal["failed_in"],
        message=refusal["message"],
        requested_bytes=refusal["requested_bytes"],
        moment=Moment("", receipt.iterations, -1),
        stack=tuple(Frame(*frame) for frame in refusal["stack"]),
    )


def _notes(ended: Ended, receipt: Receipt, iterations: int, others: Sequence[Receipt]) -> list[str]:
    notes = []
    if receipt.state == "ended" and receipt.iterations < iterations and not ran_out(receipt):
        if receipt.iterations:
            notes.append(f"the program ended by itself after {receipt.iterations} of {iterations} iterations")
        else:
            notes.append("the program steps no optimizer: it was measured to its end")
    if others and (receipt.world_size or 1) == 1:
        notes.append(
            f"{len(others) + 1} processes used the card; this is process {receipt.pid}, which held most: "
            + " ".join(receipt.argv)
        )
    if ended.killed:
        notes.append("the program went on after it was asked to end, and was killed")
    return notes
