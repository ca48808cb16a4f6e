"""What counts as bad: ``--bad any-oom | capacity | fragmentation | requested>SIZE | reserved>SIZE | exit``.

Only the chosen class is bad, and good needs evidence as well: a run that ended by another kind of failure before the
question could be answered is untestable, so that a search never drifts to another failure than the one asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import demand_bytes, is_lower_bound, requested_bytes, reserved_bytes
from oomscope.errors import UsageError
from oomscope.probe.result import ProbeResult
from oomscope.units import format_size, parse_size

Class = Literal["any-oom", "capacity", "fragmentation", "requested", "reserved", "exit"]
"""``exit`` is that of a command: it ended with a status from 1 to 124."""

_THRESHOLD = re.compile(r"(?P<quantity>requested|live|reserved)\s*>\s*(?P<size>.+)", re.IGNORECASE)
_REMEDY = "write any-oom, capacity, fragmentation, requested>SIZE, reserved>SIZE or, of a command, exit"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One probe in the words of the search."""

    answer: Answer
    reason: str
    """One line: what was seen."""


@dataclass(frozen=True, kw_only=True)
class Bad:
    """The class of results that is searched for."""

    name: Class = "any-oom"
    threshold: int = 0
    """Bytes, for ``requested`` and ``reserved``."""
    written: str = field(default="", compare=False)
    """The size as the user wrote it."""

    def __str__(self) -> str:
        return f"{self.name}>{self.written or self.threshold}" if self.name in {"requested", "reserved"} else self.name

    @classmethod
    def parse(cls, text: str) -> Bad:
        """Return what ``text`` (the value of ``--bad``) asks for.

        Raises:
            UsageError: it names no class, or its size is none.
        """
        name = text.strip().lower()
        if name == "any-oom":
            return cls(name="any-oom")
        if name == "capacity":
            return cls(name="capacity")
        if name == "fragmentation":
            return cls(name="fragmentation")
        if name == "exit":
            return cls(name="exit")
        match = _THRESHOLD.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is not a class of results", where="--bad", remedy=_REMEDY)
        size = parse_size(match["size"], where="--bad")
        quantity: Class = "reserved" if match["quantity"].lower() == "reserved" else "requested"
        return cls(name=quantity, threshold=size, written=match["size"])

    def judge(self, result: ProbeResult) -> Judgement:
        """Return whether ``result`` is of the chosen class.

        - An error (import, exception, crash, time-out) is untestable under every class.
        - ``any-oom``: bad is every run that ended out of memory.
        - ``capacity``: bad also where the failure was fragmentation but the whole run's demand exceeds the device.
          A fragmentation failure whose demand is unknown is untestable.
        - ``fragmentation``: a run that failed for another reason is untestable.
        - ``requested``, ``reserved``: a run that ended out of memory below the threshold is untestable, unless the
          whole run is known; so is, for ``reserved``, one that fits by emptying its cache where the whole run was cut
          off.
        - ``exit``: bad is also a command that ended out of memory.
        """
        if result.outcome == "error":
            return self._judge_failure(result)
        if self.name == "exit":
            return _bad(_kind(result)) if result.outcome == "oom" else _ended_well()
        if result.peak is None:
            return self._judge_unmeasured(result)
        if self.name == "requested":
            return self._judge_live(result)
        if self.name == "reserved":
            return self._judge_reserved(result)
        if result.outcome == "fits":
            return _fits(result)
        if self.name == "any-oom":
            return _bad(_kind(result))
        return self._judge_capacity(result) if self.name == "capacity" else _judge_fragmentation(result)

    def _judge_failure(self, result: ProbeResult) -> Judgement:
        failure = result.failure
        if failure is None:
            return _untestable("nothing was measured")
        reason = f"{failure.kind}: {failure.message}"
        return _bad(reason) if self.name == failure.kind == "exit" else _untestable(reason)

    def _judge_unmeasured(self, result: ProbeResult) -> Judgement:
        """Judge a run of which no bytes are known, which says something if it is a command's."""
        if result.outcome == "oom":
            kind = _kind(result)
            return _bad(kind) if self.name == "any-oom" else _untestable(f"{kind}, of which no more is known")
        if result.backend == "command" and self.name == "any-oom":
            return _ended_well()
        return _untestable("nothing was measured")

    def _judge_capacity(self, result: ProbeResult) -> Judgement:
        kind = result.verdict.kind if result.verdict else None
        if kind == "capacity":
            return _bad(_kind(result))
        if kind != "fragmentation":
            return _untestable(f"{_kind(result)}, not capacity")
        if demand_bytes(result) > (result.available_bytes or 0):
            return _bad(f"{_kind(result)}; the whole run's demand exceeds the device as well")
        if is_lower_bound(result):
            return _untestable(f"{_kind(result)}; what the rest of the run needs is unknown")
        return Judgement(answer=Answer.GOOD, reason=f"{_kind(result)}, but the whole run's demand has room")

    def _judge_live(self, result: ProbeResult) -> Judgement:
        early = "out of memory" if is_lower_bound(result) else None
        return self._compare("requested", requested_bytes(result), early)

    def _judge_reserved(self, result: ProbeResult) -> Judgement:
        early = None
        if result.outcome == "oom" and result.demand_peak is None:
            early = "out of memory"
        elif result.demand_cut:
            early = "fits by emptying its cache"
        size = reserved_bytes(result)
        return (
            self._compare("reserved", size, early)
            if size is not None
            else _untestable("requested bytes alone are known")
        )

    def _compare(self, quantity: str, size: int, early: str | None) -> Judgement:
        """Judge ``size``, which may not be all that the run wants where ``early`` says how it came short of that."""
        if size > self.threshold:
            return _bad(f"{quantity} {format_size(size)}")
        if early is not None:
            return _untestable(f"{early} at {quantity} {format_size(size)}, before the peak was known")
        return Judgement(answer=Answer.GOOD, reason=f"{quantity} {format_size(size)}")


def _judge_fragmentation(result: ProbeResult) -> Judgement:
    if result.verdict is not None and result.verdict.kind == "fragmentation":
        return _bad(_kind(result))
    return _untestable(f"{_kind(result)}, not fragmentation")


def _kind(result: ProbeResult) -> str:
    kind = result.verdict.kind if result.verdict else "kind unknown"
    where = f" in {result.oom.phase}" if result.oom and result.oom.phase else ""
    return f"out of memory{where} ({kind})"


def _fits(result: ProbeResult) -> Judgement:
    if result.margin_bytes is None:
        return Judgement(answer=Answer.GOOD, reason="ran through")
    how = "fits by emptying its cache" if result.num_alloc_retries else "fits"
    return Judgement(answer=Answer.GOOD, reason=f"{how}, {format_size(result.margin_bytes)} left")


def _ended_well() -> Judgement:
    return Judgement(answer=Answer.GOOD, reason="the command ended with status 0")


def _bad(reason: str) -> Judgement:
    return Judgement(answer=Answer.BAD, reason=reason)


def _untestable(reason: str) -> Judgement:
    return Judgement(answer=Answer.UNTESTABLE, reason=reason)
