"""The category of each block, by evidence: who allocated it, and how long it lived. No guess is silent.

Where the recording itself gives a category, that counts. Else the first rule that holds (``category_rules``), else a
count of sizes (``census``); the rule's name and how sure it is are kept, and what nothing tells stays unknown. A
recording without a reported model calls temporary or input what it cannot distinguish: there these two count last.

Tell parameters and optimizer states that were there before the recording by counting sizes. A parameter, its gradient
and its optimizer states are of the same shape. Where n gradients of a size are alive at a time and n, 2n or 3n
persistent blocks of that size are, they are the parameters and one or two states of each (Adam keeps two: ``exp_avg``
and ``exp_avg_sq``, PyTorch torch/optim/adam.py). Which of the blocks is which stays open; the bytes of each category do
not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, Lifetimes
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.activity import Activity, Phase, activity_of
from oomscope.snapshot.infer.category_rules import RULES, Confidence
from oomscope.snapshot.infer.life import Life, Mask, life_of
from oomscope.snapshot.trace import Category

MOST_STATES: Final = 3
"""States a parameter that are plausible: Adam's two, and a master copy or ``max_exp_avg_sq``."""


NO_RULE: Final = "no rule"
RECORDED: Final = "the recording"
RECORDED_WITHOUT_MODEL: Final = "a recording without a model"
CENSUS_PARAMETER: Final = "as many persistent blocks of this size as gradients"
CENSUS_STATE: Final = "further persistent blocks of a gradient's size"
RUNS_FORWARD_ONLY: Final = "alive throughout a recording that only runs forward"
_NAMES: Final = (
    NO_RULE,
    RECORDED,
    *(rule.name for rule in RULES),
    CENSUS_PARAMETER,
    CENSUS_STATE,
    RUNS_FORWARD_ONLY,
    RECORDED_WITHOUT_MODEL,
)
_OF_A_MODEL: Final = (Category.PARAMETER, Category.GRADIENT, Category.MAIN_GRADIENT, Category.OPTIMIZER_STATE)
_LEFT_OVER: Final = (Category.TEMPORARY, Category.INPUT)
"""Categories in a probe of blocks that were not reported: all, if the target names neither model nor optimizer."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The category of each row of the lifetimes, how sure it is, and by which rule."""

    category: NDArray[np.int8]
    """:class:`~oomscope.snapshot.trace.Category` of each row."""
    confidence: NDArray[np.int8]
    """:class:`Confidence` of each row."""
    rule: NDArray[np.int8]
    """Index into :attr:`rules`."""
    rules: tuple[str, ...]
    """Names of the rules; the first one is "no rule"."""

    @classmethod
    def none(cls, count: int) -> Evidence:
        """Return that nothing is known of ``count`` blocks."""
        columns = {name: np.zeros(count, dtype=np.int8) for name in ("category", "confidence", "rule")}
        return cls(**columns, rules=_NAMES)

    def found(self, rows: Mask, category: Category, confidence: Confidence, rule: str) -> None:
        """Note the category that a rule gives those of ``rows`` that are still unknown."""
        chosen = rows & (self.category == Category.UNKNOWN)
        self.category[chosen], self.confidence[chosen] = category, confidence
        self.rule[chosen] = self.rules.index(rule)


def categorise(timeline: Timeline, activity: Activity | None = None) -> Evidence:
    """Return what each block of a trace is for.

    Blocks that the recording itself gives a category keep it, but for what it could not tell apart.
    """
    table = timeline.lifetimes
    evidence = Evidence.none(len(table))
    if not len(table):
        return evidence
    inside = table.born != BEFORE
    recorded = np.zeros(len(table), dtype=np.int8)
    recorded[inside] = timeline.trace.category[table.born[inside]]
    doubtful = np.isin(recorded, () if np.isin(recorded, _OF_A_MODEL).any() else _LEFT_OVER)
    for category in np.unique(recorded[recorded > 0]).tolist():
        evidence.found((recorded == category) & ~doubtful, category, Confidence.CERTAIN, RECORDED)
    life = life_of(timeline, activity or activity_of(timeline))
    for rule in RULES:
        evidence.found(rule.holds(life), rule.category, rule.confidence, rule.name)
    _count_sizes(evidence, life, table)
    for category in _LEFT_OVER:
        evidence.found(doubtful & (recorded == category), category, Confidence.LOW, RECORDED_WITHOUT_MODEL)
    return evidence


def _count_sizes(evidence: Evidence, life: Life, table: Lifetimes) -> None:
    """Categorise persistent blocks that no rule has: by the sizes of gradients, or where nothing runs backward."""
    stays = life.lasting | (life.steps_outlived > 0) | (life.freed_in == Phase.OPTIMIZER)
    persistent = (evidence.category == Category.UNKNOWN) & life.older & stays & ~life.made_in(Phase.FORWARD)
    gradients = _at_once((evidence.category == Category.GRADIENT) & (life.own == Phase.BACKWARD), table)
    parameters, states = census(life.size, table.freed, persistent, gradients)
    evidence.found(parameters, Category.PARAMETER, Confidence.LOW, CENSUS_PARAMETER)
    evidence.found(states, Category.OPTIMIZER_STATE, Confidence.LOW, CENSUS_STATE)
    does = set(np.unique(life.own[~life.older]).tolist())
    if Phase.FORWARD in does and not does & {Phase.BACKWARD, Phase.OPTIMIZER}:
        evidence.found(life.older & life.lasting, Category.PARAMETER, Confidence.LOW, RUNS_FORWARD_ONLY)


def _at_once(rows: Mask, table: Lifetimes) -> Mask:
    """Return those of ``rows`` that are alive when most of them are; that may be before the first event."""
    before = -BEFORE
    change = np.bincount(table.born[rows] + before, minlength=table.end + before + 1)
    change -= np.bincount(np.minimum(table.freed[rows], table.end) + before, minlength=table.end + before + 1)
    fullest = int(np.cumsum(change).argmax()) - before
    return rows & (table.born <= fullest) & (table.freed > fullest)


def census(size: Indices, freed: Indices, persistent: Mask, gradients: Mask) -> tuple[Mask, Mask]:
    """Return which of ``persistent`` are taken for parameters, and which for optimizer states.

    States may be in twice the precision of the gradient; then they count from two a parameter on. Those freed last
    are taken for the parameters, since an optimizer may make its states anew in each step. ``persistent`` blocks,
    without other evidence, were alive before the recording and at its end, or in a step; ``gradients`` were alive at
    one moment.
    """
    longest = np.argsort(-freed, kind="stable")
    parameters, states = np.zeros_like(persistent), np.zeros_like(persistent)
    wanted, counts = np.unique(size[gradients], return_counts=True)
    for nbytes, count in zip(wanted.tolist(), counts.tolist(), strict=True):
        rows = longest[(persistent & (size == nbytes))[longest]]
        parameters[rows[:count]] = True
        states[rows[count : _whole(len(rows), count, 1 + MOST_STATES)]] = True
    open_ = persistent & ~parameters & ~states
    for nbytes, count in zip(wanted.tolist(), counts.tolist(), strict=True):
        rows = np.flatnonzero(open_ & (size == 2 * nbytes))
        if len(rows) >= 2 * count:
            states[rows[: _whole(len(rows), count, MOST_STATES)]] = True
    return parameters, states


def _whole(available: int, count: int, most: int) -> int:
    """Return the largest multiple of ``count`` that is available, up to ``most`` times it."""
    return min(available // count, most) * count
