"""What to do about a search whose ends are no ends: read what the target said, repair it, or name another end."""

from __future__ import annotations

from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.search.line import Answer

_OF_COMMITS = {"commits", "both"}


def remedy(result: BisectResult) -> str | None:
    """Return what to do next, in one line; None where the answer needs no remedy."""
    if result.outcome != "ends_invalid":
        return None
    ends = [probe for probe in result.probes if probe.role in {"good end", "bad end"}]
    untestable = next((probe for probe in ends if probe.answer is Answer.UNTESTABLE), None)
    if untestable is not None:
        return _of_untestable(untestable, result)
    answers = {probe.role: probe.answer for probe in ends}
    if answers.get("good end") is Answer.BAD and answers.get("bad end") is Answer.BAD:
        other = "an earlier good end, or --find-good," if result.axis in _OF_COMMITS else "another good end,"
        return f"give {other} or a --bad that the good end does not meet"
    return None


def _of_untestable(end: ProbeRecord, result: BisectResult) -> str:
    read = f"read {end.log}, then " if end.log else ""
    if result.axis not in _OF_COMMITS:
        return f"{read}mend what failed, or name another {end.role}"
    which = "a later" if end.role == "good end" else "an earlier"
    found = " (or --find-good)" if end.role == "good end" else ""
    return f"{read}name {which} {end.role}{found}, repair the commit with --fixup, or build it with --setup"
