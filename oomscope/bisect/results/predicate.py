"""What counts as bad: ``--bad any-oom | capacity | fragmentation | requested>SIZE | reserved>SIZE | exit``.

Only the chosen class is bad, and good needs evidence as well: a run that ended by another kind of failure before the
question could be answered is untestable, so that a search never drifts to another failure than the one asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from oomscope.bisect.search.line import Answer
from oomscope.errors import UsageError
from oomscope.printable import quoted
from oomscope.probe.demand import demand_bytes, is_lower_bound, requested_bytes, reserved_bytes
from oomscope.probe.result import ProbeResult
from oomscope.units import format_size, parse_size

Class = Literal["any-oom", "capacity", "fragmentation", "requested", "reserved", "exit"]
"""``exit`` is that of a command: it ended with a status from 1 to 124."""

_THRESHOLD = re.compile(r"(?P<quantity>requested|live|reserved)\s*>\s*(?P<size>.+)", re.IGNORECASE)
_REMEDY = "write any-oom, capacity, fragmentation, requested>SIZE, reserved>SIZE or, for a command, exit"


_TEXTS = {"any-oom": "out of memory of any kind", "exit": "a failing exit status"}


def bad_text(bad_class: str) -> str:
    """Return what ``--bad`` means: ``out of memory of any kind``, ``requested > 70GiB``."""
    quantity, is_threshold, size = bad_class.partition(">")
    if is_threshold:
        return f"{quantity} > {size}"
    return _TEXTS.get(bad_class, f"out of memory by {bad_class}")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The answer that one probe gives."""

    answer: Answer
    reason: str
    """What was seen, in one line."""


@dataclass(frozen=True, kw_only=True)
class Bad:
    """The class of results that is searched for."""

    name: Class = "any-oom"
    threshold: int = 0
    """Size in bytes, for ``requested`` and ``reserved``."""
    written: str = field(default="", compare=False)
    """The size as the user wrote it."""

    def __str__(self) -> str:
        return f"{self.name}>{self.written or self.threshold}" if self.name in {"requested", "reserved"} else self.name

    @classmethod
    def parse(cls, text: str) -> Bad:
        """Return the class that ``text`` (the value of ``--bad``) names.

        Raises:
            UsageError: it names no class, or its size is not a size.
        """
        for name in get_args(Class):
            if name == text.strip().lower() and name not in {"requested", "reserved"}:
                return cls(name=name)
        match = _THRESHOLD.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{quoted(text)} is not a class of failures", where="--bad", remedy=_REMEDY)
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
            if result.failure is None:
                return _untestable("nothing was measured")
            reason = f"{result.failure.kind}: {result.failure.reason}"
            return _bad(reason) if self.name == result.failure.kind == "exit" else _untestable(reason)
        if self.name == "exit" or result.peak is None:
            return self._judge_unmeasured(result)
        if self.name == "requested":
            early = "out of memory" if is_lower_bound(result) else None
            return self._compare(requested_bytes(result), early)
        if self.name == "reserved":
            return self._judge_reserved(result)
        return _fits(result) if result.outcome == "fits" else self._judge_oom(result)

    def _judge_unmeasured(self, result: ProbeResult) -> Judgement:
        """Judge a run by its end alone, such as that of a command."""
        if self.name == "exit":
            return _bad(_kind(result)) if result.outcome == "oom" else _good("the command ended with status 0")
        if result.outcome == "oom":
            kind = _kind(result)
            return _bad(kind) if self.name == "any-oom" else _untestable(f"{kind}, and nothing else is known")
        if result.backend == "command" and self.name == "any-oom":
            return _good("the command ended with status 0")
        return _untestable("nothing was measured")

    def _judge_oom(self, result: ProbeResult) -> Judgement:
        """Judge a run that ended out of memory by the kind of its failure."""
        kind = result.verdict.kind if result.verdict else None
        if self.name in {"any-oom", kind}:
            return _bad(_kind(result))
        if self.name == "fragmentation":
            return _untestable(f"{_kind(result)}, not fragmentation")
        if kind != "fragmentation":
            return _untestable(f"{_kind(result)}, not capacity")
        if demand_bytes(result) > (result.available_bytes or 0):
            return _bad(f"{_kind(result)}; the whole run's demand exceeds the device as well")
        if is_lower_bound(result):
            return _untestable(f"{_kind(result)}; what the rest of the run needs is unknown")
        return _good(f"{_kind(result)}, but the whole run's demand fits")

    def _judge_reserved(self, result: ProbeResult) -> Judgement:
        early = None
        if result.outcome == "oom" and result.demand_peak is None:
            early = "out of memory"
        elif result.demand_cut:
            early = "fits by emptying its cache"
        size = reserved_bytes(result)
        return _untestable("requested bytes alone are known") if size is None else self._compare(size, early)

    def _compare(self, size: int, early: str | None) -> Judgement:
        """Judge ``size``, which may be less than the whole run wants if ``early`` says how the run ended."""
        threshold = format_size(self.threshold)
        if size > self.threshold:
            return _bad(f"{format_size(size - self.threshold)} above {threshold} {self.name}")
        if early is not None:
            return _untestable(f"{early} at {self.name} {format_size(size)}, before the peak was known")
        return _good(f"{format_size(self.threshold - size)} below {threshold} {self.name}")


def _fits(result: ProbeResult) -> Judgement:
    if result.margin_bytes is None:
        return _good("ran through")
    how = "fits by emptying its cache" if result.num_alloc_retries else "fits"
    return _good(f"{how}, {format_size(result.margin_bytes)} left")


def _kind(result: ProbeResult) -> str:
    kind = result.verdict.kind if result.verdict else "kind unknown"
    where = f" in {result.oom.phase}" if result.oom and result.oom.phase else ""
    return f"out of memory{where} ({kind})"


def _good(reason: str) -> Judgement:
    return Judgement(answer=Answer.GOOD, reason=reason)


def _bad(reason: str) -> Judgement:
    return Judgement(answer=Answer.BAD, reason=reason)


def _untestable(reason: str) -> Judgement:
    return Judgement(answer=Answer.UNTESTABLE, reason=reason)
