"""Which process speaks for a program, and what it is that a program which measured nothing did wrong.

Wrong and silent is the worst outcome: a program that put nothing on the card, kept its model on the CPU, or ended
before its first step has no answer, whatever its exit status.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.probe.result import WITHOUT_TORCH, ErrorKind, Failure
from oomscope.probe.targets.command.answer import failure_of
from oomscope.probe.targets.program.execution import Ended
from oomscope.probe.targets.program.receipt import Receipt
from oomscope.units import format_size


def representative(receipts: Sequence[Receipt], rank: int | None = None) -> Receipt | None:
    """Return the process that speaks for the program; None where there is none, or none of ``rank`` if that is given.

    One that ended for want of memory comes first, then the one that held most on a card, then the one that trained. Of
    those that did nothing it is one that says why: a child of a launcher, not the launcher, which came before it. Of
    ranks that did the same it is the lowest: two runs are compared by their representatives, which begin in any order.
    """
    return max((each for each in receipts if rank in (None, each.rank)), key=_weight, default=None)


def _weight(receipt: Receipt) -> tuple[int | bool, ...]:
    done = (ran_out(receipt), receipt.peak_bytes, receipt.steps, receipt.parameters_on_cpu)
    ranked = (receipt.rank is not None, -(receipt.rank or 0))
    return (*done, receipt.raised is not None, *ranked, receipt.began_ns)


def ran_out(receipt: Receipt) -> bool:
    """Whether memory is what ended this process: its last refusal left it with nothing done, or it raised it."""
    if receipt.state == "stopped":
        return False
    raised = receipt.raised is not None and receipt.raised.refusal is not None
    return raised or (receipt.refused is not None and not receipt.went_on)


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
        return Failure(kind="nothing", message=f"{WITHOUT_TORCH}{_status_of(ended)}")
    unfit = next((each.unfit for each in ended.receipts if each.unfit), None)
    if unfit is not None:
        return Failure(kind="unfit", message=unfit)
    if ran_out(receipt):
        return None
    if receipt.state == "running":
        return _lost(ended, receipt)
    if receipt.state == "ended" and (receipt.raised is not None or ended.status != 0):
        return _failed(ended, receipt)
    return _empty(ended, receipt)


def _lost(ended: Ended, receipt: Receipt) -> Failure:
    """Return that a process ended without a word."""
    kind: ErrorKind = failure_of(ended.status)[0] if ended.status else "crash"
    when = _progress_of(receipt)
    who = _rank_of(receipt) or "a process of the program"
    return Failure(kind=kind, message=f"{who} was ended {when} and kept nothing{_status_of(ended)}")


def _failed(ended: Ended, receipt: Receipt) -> Failure:
    kind: ErrorKind = failure_of(ended.status)[0] if ended.status else "step"
    raised = receipt.raised
    said = f": {raised.text}" if raised else ""
    who = _rank_of(receipt) or "the program"
    return Failure(kind=kind, message=f"{who} ended {_progress_of(receipt)}{_status_of(ended)}{said}")


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
        return Failure(kind="nothing", message=f"the program ended before its first step{_status_of(ended)}")
    return None


def _rank_of(receipt: Receipt) -> str:
    """Return which rank of a world a process is; empty where there is no world."""
    return f"rank {receipt.rank} of {receipt.world_size}" if (receipt.world_size or 1) > 1 else ""


def _progress_of(receipt: Receipt) -> str:
    if not receipt.iterations:
        return "before its first step"
    return f"after {receipt.iterations} step{'s' if receipt.iterations > 1 else ''}"


def _status_of(ended: Ended) -> str:
    """Return how the program ended, as the end of a sentence; empty where it ended well."""
    if not ended.status:
        return ""
    text = failure_of(ended.status)[1]
    return f" ({text.replace('the command', 'it')})"
