"""From what the processes of a program left to what any run of a target gives: a measurement, and how the run ended.

The result of one process is reported for the program. Wrong and silent is the worst outcome: a program that put nothing
on the card, kept its model on the CPU, or ended before its first step has no answer, whatever its exit status.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from oomscope.errors import SnapshotError
from oomscope.probe.analysis.analyse import RULES
from oomscope.probe.analysis.failures import Refusal, out_of_memory_of
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.probe.measurement import DeviceBudget, Ending, Measurement, OutOfMemory, Unanswered
from oomscope.probe.recording.block_label import BlockLabel
from oomscope.probe.recording.reading import RecordedRefusal, measurement_of
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.result import ErrorKind, Failure, RankSummary
from oomscope.probe.targets.command import failure_of
from oomscope.probe.targets.program.receipt import Receipt
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Category, Frame, Moment
from oomscope.units import Bytes, format_size
from oomscope.virtual.extensions import NO_IPC

_FROM_CHECKOUT: Final = (
    "was imported from your checkout, not from the commit: begin the command with env PYTHONPATH=FOLDER, where FOLDER "
    "is the folder of the module from the root of the repository, such as src"
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended."""

    status: int
    """Exit status of the process that was started; negative for a signal."""
    killed: bool
    """Whether it was asked to end, did not, and was killed."""
    overran: bool = False
    """Whether it took longer than it was given, and was killed."""
    receipts: tuple[Receipt, ...]
    """Receipts of its processes, the oldest first."""
    seconds: float


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
    speaker = representative(ended.receipts, rank)
    failure = failure_in(ended, rank)
    if failure is not None or speaker is None:
        return Ending(measurement=None, failure=failure, unanswered=_unanswered(ended.receipts))
    receipt = speaker.as_last_known
    if not receipt.snapshot:
        return Ending(measurement=None, failure=_unwritten(receipt))
    measurement = _measurement(receipt, settings, _device_of(receipt, ended.receipts, budget))
    others = [each for each in ended.receipts if each is not speaker and each.peak_bytes]
    is_of_world = (receipt.world_size or 1) > 1
    measurement = replace(
        measurement,
        rank=receipt.rank if is_of_world else None,
        world_size=receipt.world_size if is_of_world else None,
        ranks=_ranks(ended.receipts, budget) if is_of_world else (),
        unanswered=_unanswered(ended.receipts),
        saved=_saved_by(ended.receipts),
        other_peaks=tuple(sorted((each.peak_bytes for each in others), reverse=True)),
        notes=(*measurement.notes, *_notes(ended, receipt, iterations, others)),
    )
    return Ending(measurement=measurement, out_of_memory=_out_of_memory(receipt, measurement))


def _ranks(receipts: Sequence[Receipt], budget: DeviceBudget | None) -> tuple[RankSummary, ...]:
    """Return one row a rank, of the process that represents it."""
    ranks = sorted({each.rank for each in receipts if each.rank is not None and each.peak_bytes})
    speakers = (speaker for rank in ranks if (speaker := representative(receipts, rank)))
    return tuple(_summary(speaker, _device_of(speaker, receipts, budget)) for speaker in speakers)


def _summary(receipt: Receipt, device: DeviceBudget) -> RankSummary:
    reserved, failed = receipt.stats.get("reserved_bytes.all.peak", 0), receipt.ran_out
    return RankSummary(
        rank=receipt.rank or 0,
        outcome="oom" if failed else "fits",
        peak=Bytes(requested_bytes=receipt.stats.get("requested_bytes.all.peak", 0), reserved_bytes=reserved),
        margin_bytes=device.available_bytes - reserved,
        message=f"asked for {format_size(receipt.refused.requested_bytes)}" if failed and receipt.refused else "",
    )


def _unwritten(receipt: Receipt) -> Failure:
    if receipt.raised is not None:
        return Failure(kind="step", message=receipt.raised.text, detail=receipt.raised.details)
    return Failure(kind="crash", message="; ".join(["what was recorded could not be written", *receipt.notes]))


def _measurement(receipt: Receipt, settings: SessionSettings, device: DeviceBudget) -> Measurement:
    index = receipt.device or 0
    snapshot = load_snapshot(receipt.snapshot)
    if settings.is_recorded and not any(trace.device == index for trace in snapshot.traces):
        raise SnapshotError(
            f"nothing of cuda:{index} was recorded",
            where=receipt.snapshot,
            remedy="leave torch.cuda.memory._record_memory_history to oomscope while it measures",
        )
    sidecar = json.loads(Path(receipt.snapshot).with_suffix(".json").read_text())
    measurement = measurement_of(
        snapshot,
        device,
        index=index,
        labels=[BlockLabel(address, number, Category(category)) for address, number, category in sidecar["labels"]],
        allocations=sidecar["allocations"],
        workspaces=receipt.workspaces,
        torch_version=receipt.torch_version,
        stats=receipt.stats,
        refusal=_refusal(receipt, index),
        max_entries=settings.max_entries,
    )
    return replace(
        measurement,
        pinned_bytes=receipt.pinned_bytes,
        iterations=receipt.iterations,
        unstepped=receipt.unstepped,
        uses_cards=sum(map(bool, receipt.card_peaks)),
        growing=tuple(receipt.growing),
        versions=_versions(receipt),
        notes=tuple(receipt.notes),
    )


def _device_of(receipt: Receipt, receipts: Sequence[Receipt], budget: DeviceBudget | None) -> DeviceBudget:
    """Return the card as a process saw it: a virtual one, ``budget``, less what other processes of the program held.

    That is what they held when the process was refused memory. Where it was not, it is the most that all processes
    held at once, less this one's own peak: its margin is then what the whole program left free.
    """
    if budget is None:
        return DeviceBudget(**(receipt.budget or {})).under(receipt.fraction)
    refused, index = receipt.refused, receipt.device or 0
    if refused is not None and refused.device == index:
        held = budget.limit_bytes - budget.non_torch_bytes - refused.held_bytes - refused.free_bytes
    else:
        are_others = any(each.pid != receipt.pid and each.is_cuda_initialised for each in receipts)
        most = max((each.most_held_of(receipt.name_of(index)) for each in receipts), default=0) if are_others else 0
        held = budget.other_process_bytes + max(0, most - receipt.stats.get("reserved_bytes.all.peak", 0))
    return replace(budget, other_process_bytes=max(held, budget.other_process_bytes)).under(receipt.fraction)


def _is_another_rank(one: Receipt, other: Receipt) -> bool:
    """Whether two processes are ranks of one world, which run at the same time."""
    return one.rank is not None and other.rank is not None and one.rank != other.rank


def _versions(receipt: Receipt) -> dict[str, str]:
    """Return the versions of the program's torch, which may be another than oomscope's, and whose rules count then."""
    versions = {"torch": receipt.torch_version, "cuda": str(receipt.cuda_version)} | receipt.versions
    major_minor = ".".join(receipt.torch_version.split(".")[:2])
    return versions if major_minor == installed_torch() else versions | {RULES: major_minor}


def _unanswered(receipts: Sequence[Receipt]) -> Unanswered:
    """Return what the card could not answer all processes: a value that one reads may decide what another asks for."""
    documents = [receipt.unanswered for receipt in receipts if receipt.unanswered]

    def all_of(name: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(document[name] for document in documents)))

    return Unanswered(
        reads=sum(document["reads"] for document in documents),
        lines=tuple(dict.fromkeys(Frame(*line) for document in documents for line in document["lines"])),
        unsupported=all_of("unsupported"),
        unknown_workspaces=all_of("unknown_workspaces"),
        not_computed=all_of("not_computed"),
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


def _out_of_memory(receipt: Receipt, measurement: Measurement) -> OutOfMemory | None:
    if not receipt.ran_out:
        return None
    document = receipt.raised.refusal if receipt.raised else None
    if document is None:
        return measurement.oom
    refusal = Refusal(**document | {"stack": tuple(Frame(*frame) for frame in document["stack"])})
    return out_of_memory_of(refusal, measurement, Moment("", receipt.iterations, -1))


def _notes(ended: Ended, receipt: Receipt, iterations: int, others: Sequence[Receipt]) -> list[str]:
    notes = []
    if receipt.state == "ended" and receipt.iterations < iterations and not receipt.ran_out:
        if receipt.iterations:
            made = f"{receipt.iterations} of {iterations} iterations"
            rest = f"what follows them counts as iteration {receipt.iterations} (numbered from 0)"
            notes.append(f"the program ended by itself after {made}; {rest}")
        elif not any(each.iterations for each in ended.receipts):
            notes.append("no step of a torch.optim.Optimizer was seen: the program was measured to its end")
    if receipt.state == "stopped" and receipt.iterations < iterations:
        made = f"{receipt.backwards} backward passes with {receipt.iterations} of {iterations} iterations"
        notes.append(f"the program was ended after {made}: with these values it may never step again")
    if receipt.unstepped:
        late = f"{receipt.unstepped} of {receipt.optimizers} optimizers did not step in {receipt.iterations} iterations"
        notes.append(f"{late}: the gradients and states that such a step needs were not measured")
    why = "ran out of memory" if receipt.ran_out else "held most"
    if len(used := {index: size for index, size in enumerate(receipt.card_peaks) if size}) > 1:
        held = ", ".join(f"{format_size(size)} of cuda:{index}" for index, size in used.items())
        notes.append(f"{len(used)} cards were used, and this is cuda:{receipt.device}, which {why}: at most {held}")
    card = receipt.name_of(receipt.device or 0)
    for each in others:
        if _is_another_rank(each, receipt) and (strayed := each.peak_of(card)):
            where = f"cuda:{card}, the card of rank {receipt.rank}"
            remedy = "torch.cuda.set_device(LOCAL_RANK), or map_location, may be missing"
            notes.append(f"rank {each.rank} held at most {format_size(strayed)} of {where}: {remedy}")
    users = [each for each in ended.receipts if each.is_cuda_initialised]
    if len(users) > 1 and (receipt.world_size or 1) == 1:
        notes.append(
            f"{len(users)} processes used the card; this is process {receipt.pid}, which {why}: "
            + " ".join(receipt.argv)
        )
    if ended.killed:
        notes.append("the program did not end when asked, and was killed")
    if saved := _saved_by(ended.receipts):
        notes.append(f"the program saved {saved}: a virtual card computes no values to save")
    return notes


def _saved_by(receipts: Sequence[Receipt]) -> str:
    """Return which files the processes saved, as seen from the folder that the program ran in."""
    paths = list(dict.fromkeys(Path(path) for each in receipts for path in each.saved))
    if not paths:
        return ""
    shown = paths[0].relative_to(Path.cwd()) if paths[0].is_relative_to(Path.cwd()) else paths[0]
    return f"{shown} and {len(paths) - 1} more" if len(paths) > 1 else str(shown)


def representative(receipts: Sequence[Receipt], rank: int | None = None) -> Receipt | None:
    """Return the process whose result is reported for the program, of ``rank`` if that is given; None without one.

    One that ended for lack of memory comes first, before one that only raised another process's error. Then comes the
    one that reserved most of its card, or wanted most on top of that: it has the least margin. Then come the one that
    allocated most, and the one that trained. Of those that did nothing it is one that says why: a child of a launcher,
    not the launcher, which came before it. Of ranks that did the same it is the lowest: two runs are compared by their
    representatives, which begin in any order.
    """
    return max((each for each in receipts if rank in (None, each.rank)), key=_weight, default=None)


def _weight(receipt: Receipt) -> tuple[int | bool, ...]:
    wanted = receipt.stats.get("reserved_bytes.all.peak", 0)
    refused = receipt.refused if receipt.ran_out else None
    if refused is not None:
        wanted += refused.requested_bytes
    done = (receipt.ran_out, refused is not None, wanted, receipt.peak_bytes, receipt.steps, receipt.parameters_on_cpu)
    told = (receipt.rank is not None, receipt.raised is not None, -(receipt.rank or 0))
    return (*done, *told, receipt.began_ns)


def failure_in(ended: Ended, rank: int | None = None) -> Failure | None:
    """Return why a program measured nothing; None where its representative, of ``rank`` if given, has an answer."""
    if ended.overran:
        took = f"it was ended after {ended.seconds:.0f} s; the first run took at most a tenth of that"
        return Failure(kind="timeout", message=took)
    receipt = representative(ended.receipts, rank)
    if receipt is None and (ranks := {each.rank for each in ended.receipts} - {None}):
        listed = ", ".join(map(str, sorted(ranks, key=lambda each: each or 0)))
        return Failure(kind="usage", message=f"the program started no rank {rank}; it started {listed}")
    if receipt is None:
        return _without_torch(ended)
    kind: ErrorKind
    if (unfit := _unfit(ended.receipts)) is not None or receipt.ran_out:
        return unfit
    if receipt.defect:
        return Failure(kind="internal", message=receipt.defect)
    who = f"rank {receipt.rank} of {receipt.world_size}" if (receipt.world_size or 1) > 1 else ""
    done = receipt.iterations
    when = f"after {done} step{'s' if done > 1 else ''}" if done else "before its first step"
    kind = failure_of(ended.status)[0] if ended.status else "crash" if receipt.state == "running" else "step"
    if receipt.state == "running":
        who = who or "a process of the program"
        return Failure(kind=kind, message=f"{who} was ended {when} and kept nothing{_status_of(ended)}")
    if receipt.state == "ended" and (receipt.raised is not None or ended.status != 0):
        raised = f": {receipt.raised.text}" if receipt.raised else ""
        kind = "untestable" if NO_IPC in raised else kind
        message = f"{who or 'the program'} ended {when}{_status_of(ended)}{raised}"
        return Failure(kind=kind, message=message, is_status_alone=not raised)
    return _empty(ended, receipt) or _failed_rank(ended, receipt)


def _unfit(receipts: Sequence[Receipt]) -> Failure | None:
    """Return why what was measured is not what was asked for; None where it is."""
    unfit = next((each.unfit for each in receipts if each.unfit), None)
    if unfit is not None:
        return Failure(kind="unfit", message=unfit)
    module = next((each.from_checkout for each in receipts if each.from_checkout), None)
    return None if module is None else Failure(kind="untestable", message=f"{module} {_FROM_CHECKOUT}")


def _without_torch(ended: Ended) -> Failure:
    if not ended.status:
        message = "no process of the program imported torch"
        return Failure(kind="nothing", message=message, unrecorded="without_torch")
    message = f"the program failed before it imported torch{_status_of(ended)}"
    return Failure(kind=failure_of(ended.status)[0], message=message, unrecorded="failed_before_torch")


def _failed_rank(ended: Ended, speaker: Receipt) -> Failure | None:
    """Return the failure of a rank that made fewer iterations than ``speaker``; None where there is none.

    A rank that is one iteration behind may have failed because the probe ended the rank that it waits for.
    """
    if not ended.status or ended.killed:
        return None
    for rank in sorted({each.rank for each in ended.receipts if each.rank is not None} - {speaker.rank}):
        each = representative(ended.receipts, rank)
        if each is None or each.state == "stopped" or each.iterations >= speaker.iterations - 1:
            continue
        made = f"made {each.iterations} of the {speaker.iterations} iterations of rank {speaker.rank}"
        how = "ran out of memory" if each.ran_out else "failed"
        message = f"rank {rank} of {each.world_size} {how}: it {made}{_status_of(ended)}"
        return Failure(kind=failure_of(ended.status)[0], message=message)
    return None


def _empty(ended: Ended, receipt: Receipt) -> Failure | None:
    """Return what is wrong with a program that ended well; None where it is nothing."""
    if receipt.is_cuda_initialised and not receipt.stats:
        return Failure(kind="internal", message="; ".join(["the program could not be recorded", *receipt.notes]))
    on_cpu = receipt.parameters_on_cpu
    if on_cpu and not receipt.parameters_on_card and receipt.peak_bytes < on_cpu:
        return Failure(
            kind="nothing",
            message=f"the model is on the CPU: {format_size(on_cpu)} of parameters there, none on the card",
        )
    if not receipt.peak_bytes:
        return Failure(kind="nothing", message="the program put nothing on the card")
    if receipt.state == "ended" and receipt.optimizers and not receipt.iterations:
        message = f"the program ended before its first step{_status_of(ended)}"
        return Failure(kind="nothing", message=message, unrecorded="before_a_step")
    return None


def _status_of(ended: Ended) -> str:
    """Return how the program ended, as the end of a sentence; empty where it ended well."""
    if not ended.status:
        return ""
    text = failure_of(ended.status)[1]
    return f" ({text.replace('the command', 'it')})"
