"""Both ends are checked before anything is searched; often they are the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from oomscope.bisect.result import ProbeRecord, Role
from oomscope.bisect.search import Answer


@dataclass(frozen=True, kw_only=True)
class LineEnds:
    """The ends of a line, as people and records name them."""

    good: str
    bad: str
    good_role: Role
    bad_role: Role
    between_role: Role
    """Of all positions in between."""
    are_needed: bool
    """Whether nothing can be said where one of them cannot be tested."""


ENDS = LineEnds(
    good="the good end",
    bad="the bad end",
    good_role="good end",
    bad_role="bad end",
    between_role="search",
    are_needed=True,
)
BRANCH_ENDS = LineEnds(
    good="its beginning",
    bad="the merge",
    good_role="merged branch",
    bad_role="merged branch",
    between_role="merged branch",
    are_needed=False,
)
"""Of what a merge brought in; an end that cannot be tested is one more untestable position there."""


class EndsAnswer(NamedTuple):
    """The answer that the ends alone give."""

    kind: Literal["no_culprit", "ends_invalid"]
    reason: str


def judge_ends(good: ProbeRecord, bad: ProbeRecord) -> EndsAnswer | None:
    """Return the answer that two probed ends give; None where the good one is good and the bad one bad.

    Two good ends mean that nothing is at fault. A good end that is bad, or an end that cannot be tested, means that
    the question was put wrongly.
    """
    if good.answer is Answer.UNTESTABLE:
        return EndsAnswer("ends_invalid", f"the good end cannot be tested: {good.reason}")
    if bad.answer is Answer.UNTESTABLE:
        return EndsAnswer("ends_invalid", f"the bad end cannot be tested: {bad.reason}")
    if good.answer is Answer.GOOD:
        return None if bad.answer is Answer.BAD else EndsAnswer("no_culprit", f"the bad end is good: {bad.reason}")
    if bad.answer is Answer.GOOD:
        return EndsAnswer("ends_invalid", "the good end is bad and the bad end good: swap them")
    return EndsAnswer("ends_invalid", f"the good end is bad already: {good.reason}")
