"""What foreign blocks are for, by evidence: who allocated them, and how long they lived. No guess is silent.

Each rule is a row of a table: a condition on what the program did when a block was born and given up, the category
it tells, and how sure it is. The first rule that holds counts, its name is kept, and what no rule tells stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.doing import Doing, Mark, activity_of
from oomscope.snapshot.lifetimes import BEFORE
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Annotation, Category

Mask = NDArray[np.bool_]


class Confidence(IntEnum):
    """How sure a category is."""

    NONE = 0
    """Unknown."""
    LOW = 1
    """The likeliest of several readings."""
    MEDIUM = 2
    """A convention of user code, or a lifetime that the end of the recording cut off."""
    HIGH = 3
    """A function of PyTorch's own, together with a whole lifetime."""
    CERTAIN = 4
    """The recording says it."""

    @property
    def label(self) -> str:
        """Return the name used in reports and JSON."""
        return self.name.lower()


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


class Life(NamedTuple):
    """What is known of each block, in columns over the rows of the lifetimes."""

    told: NDArray[np.int8]
    """Category that the recording gives."""
    own: NDArray[np.int8]
    """:class:`Doing` that its stack or metadata tells."""
    born_in: NDArray[np.int8]
    """:class:`Doing` carried on from the last allocation that told."""
    freed_in: NDArray[np.int8]
    """:class:`Doing` when it was given up; unknown where it never was."""
    marks: NDArray[np.int32]
    older: Mask
    """Alive before the recording."""
    lasting: Mask
    """Alive when the recording ended."""
    same_span: Mask
    """Given up in the run of events in which it was born."""
    cut_off: Mask
    """Alive at the end, while the program still did what it did at the block's birth."""
    outlived_step: Mask
    """An optimizer step began and ended during its life."""

    def marked(self, mark: Mark) -> Mask:
        """Return which blocks have a frame that says ``mark``."""
        return (self.marks & mark) != 0


class Rule(NamedTuple):
    """A row of the table."""

    name: str
    category: Category
    confidence: Confidence
    holds: Callable[[Life], Mask]


def _forward(life: Life) -> Mask:
    return life.own == Doing.FORWARD


def _backward(life: Life) -> Mask:
    return life.own == Doing.BACKWARD


def _optimizer(life: Life) -> Mask:
    return life.own == Doing.OPTIMIZER


def _untold(life: Life, during: Doing) -> Mask:
    return (life.own == Doing.UNKNOWN) & (life.born_in == during) & ~life.older


RULES: Final = (
    Rule("workspace", Category.WORKSPACE, Confidence.HIGH, lambda life: life.marked(Mark.WORKSPACE)),
    Rule(
        "moved with its module",
        Category.PARAMETER,
        Confidence.HIGH,
        lambda life: life.marked(Mark.MODULE_MOVE) & ~_forward(life) & (life.lasting | life.outlived_step),
    ),
    Rule(
        "received in forward, given up in backward",
        Category.ACTIVATION,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.COMMUNICATION) & _forward(life) & (life.freed_in == Doing.BACKWARD),
    ),
    Rule(
        "sent or received",
        Category.COMMUNICATION,
        Confidence.HIGH,
        lambda life: life.marked(Mark.COMMUNICATION) & ~life.outlived_step,
    ),
    Rule(
        "optimizer's state initialisation",
        Category.OPTIMIZER_STATE,
        Confidence.HIGH,
        lambda life: life.marked(Mark.STATE_INIT) & ~life.same_span,
    ),
    Rule(
        "given up in the step that made it",
        Category.TEMPORARY,
        Confidence.HIGH,
        lambda life: _optimizer(life) & life.same_span,
    ),
    Rule(
        "outlives the step that made it",
        Category.OPTIMIZER_STATE,
        Confidence.MEDIUM,
        lambda life: _optimizer(life) & ~life.cut_off,
    ),
    Rule("alive in the last step", Category.OPTIMIZER_STATE, Confidence.LOW, _optimizer),
    Rule(
        "recomputed in backward",
        Category.ACTIVATION,
        Confidence.HIGH,
        lambda life: life.marked(Mark.RECOMPUTE) & _backward(life),
    ),
    Rule(
        "given up in the backward that made it",
        Category.TEMPORARY,
        Confidence.HIGH,
        lambda life: _backward(life) & life.same_span,
    ),
    Rule(
        "accumulated gradient",
        Category.GRADIENT,
        Confidence.HIGH,
        lambda life: life.marked(Mark.ACCUMULATE_GRAD) & ~life.same_span,
    ),
    Rule(
        "outlives the backward that made it",
        Category.GRADIENT,
        Confidence.HIGH,
        lambda life: _backward(life) & ~life.cut_off,
    ),
    Rule("alive in the last backward", Category.GRADIENT, Confidence.LOW, _backward),
    Rule(
        "made by zero_grad",
        Category.GRADIENT,
        Confidence.MEDIUM,
        lambda life: (life.own == Doing.ZERO_GRAD) & ~life.same_span,
    ),
    Rule(
        "given up in the forward that made it",
        Category.TEMPORARY,
        Confidence.HIGH,
        lambda life: _forward(life) & life.same_span,
    ),
    Rule(
        "made in forward, given up in backward",
        Category.ACTIVATION,
        Confidence.HIGH,
        lambda life: _forward(life) & (life.freed_in == Doing.BACKWARD),
    ),
    Rule("outlives the forward that made it", Category.ACTIVATION, Confidence.MEDIUM, _forward),
)
"""In order; the first that holds counts. Lifetimes are those of PyTorch's autograd: what forward saves, backward gives
up (torch/csrc/autograd/saved_variable.h), gradients live from backward to the step or to ``zero_grad``."""


def categorise(timeline: Timeline, annotations: Sequence[Annotation] = ()) -> Evidence:
    """Return what each block of a trace is for.

    Args:
        timeline: the trace, paired; blocks that the recording itself gives a category keep it.
        annotations: the snapshot's.
    """
    life = life_of(timeline, annotations)
    count = len(timeline.lifetimes)
    category = life.told.astype(np.int8)
    confidence = np.where(category > 0, Confidence.CERTAIN, Confidence.NONE).astype(np.int8)
    rule = np.where(category > 0, 1, 0).astype(np.int8)
    open_ = category == Category.UNKNOWN
    for number, each in enumerate(RULES, start=2):
        found = open_ & each.holds(life) if count else open_
        category[found], confidence[found], rule[found] = each.category, each.confidence, number
        open_ &= ~found
    names = ("no rule", "the recording", *(each.name for each in RULES))
    return Evidence(category=category, confidence=confidence, rule=rule, rules=names)


def life_of(timeline: Timeline, annotations: Sequence[Annotation] = ()) -> Life:
    """Return what is known of each block's birth and end."""
    trace, table = timeline.trace, timeline.lifetimes
    activity = activity_of(timeline, annotations)
    older, lasting = table.born == BEFORE, table.freed >= table.end
    at = np.append(activity.at, Doing.UNKNOWN)
    span = np.append(activity.span, activity.span[-1] if len(activity.span) else 0)
    born, freed = (
        np.where(older, len(trace), table.born),
        np.where(lasting | (table.freed < 0), len(trace), table.freed),
    )
    told = np.zeros(len(table), dtype=np.int8)
    told[~older] = trace.category[table.born[~older]]
    in_born_span = span[born] == span[freed]
    return Life(
        told=told,
        own=activity.own,
        born_in=at[born],
        freed_in=at[freed],
        marks=activity.marks,
        older=older,
        lasting=lasting,
        same_span=in_born_span & ~older & ~lasting,
        cut_off=in_born_span & ~older & lasting,
        outlived_step=_steps_ended(activity.at)[freed] > np.where(older, 0, _steps_begun(activity.at)[born]),
    )


def _steps_begun(at: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return how many optimizer steps have begun at each event, and at the end."""
    stepping = np.append(False, at == Doing.OPTIMIZER)
    begun = np.cumsum(stepping[1:] & ~stepping[:-1])
    return np.append(begun, begun[-1] if len(begun) else 0)


def _steps_ended(at: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return how many optimizer steps have ended at each event, and at the end."""
    return _steps_begun(at) - np.append(at == Doing.OPTIMIZER, False)
