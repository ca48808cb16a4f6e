"""The table of rules by which a foreign block's category is told: who made it, and how long it lived.

Each row is a condition, the category that it tells and how sure it is. The first row that holds counts, so a rule may
take for granted that those above it do not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from oomscope.snapshot.infer.activity import Doing, Mark
from oomscope.snapshot.infer.life import Life, Mask
from oomscope.snapshot.trace import Category
from oomscope.units import KiB, MiB


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


class Rule(NamedTuple):
    """A row of the table."""

    name: str
    category: Category
    confidence: Confidence
    holds: Callable[[Life], Mask]


def _does(life: Life, doing: Doing) -> Mask:
    """Return which blocks a stack or metadata says to be made while ``doing``."""
    return np.asarray(life.own == doing)


def _between(life: Life, doing: Doing) -> Mask:
    """Return which blocks nothing tells of, but that were made after ``doing`` had begun and before anything else."""
    return np.asarray((life.own == Doing.UNKNOWN) & (life.born_in == doing) & ~life.older)


def _between_steps(life: Life) -> Mask:
    """Return which blocks nothing tells of, but that were made after the first forward, backward or step had begun."""
    return np.asarray((life.own == Doing.UNKNOWN) & (life.born_in != Doing.UNKNOWN))


def _of_setup(life: Life) -> Mask:
    """Return which blocks were made before any forward, backward or step, and are there to stay."""
    return _between(life, Doing.UNKNOWN) & (life.lasting | (life.steps_outlived > 0))


FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD = Doing.FORWARD, Doing.BACKWARD, Doing.OPTIMIZER, Doing.ZERO_GRAD
CUBLAS_WORKSPACES: Final = (32 * MiB, (4096 * 2 + 16 * 8) * KiB)
"""Bytes of a cuBLAS handle's workspace on Hopper and newer, and before (PyTorch
aten/src/ATen/cuda/CublasHandlePool.cpp, ``getChosenWorkspaceSize``)."""

RULES: Final = (
    Rule("workspace's function", Category.WORKSPACE, Confidence.HIGH, lambda life: life.marked(Mark.WORKSPACE)),
    Rule(
        "size and life of a cuBLAS workspace",
        Category.WORKSPACE,
        Confidence.MEDIUM,
        lambda life: np.isin(life.size, CUBLAS_WORKSPACES) & life.lasting & (life.alone | (life.steps_outlived > 1)),
    ),
    Rule(
        "moved with its module",
        Category.PARAMETER,
        Confidence.HIGH,
        lambda life: life.marked(Mark.MODULE_MOVE) & ~_does(life, FORWARD) & (life.lasting | (life.steps_outlived > 0)),
    ),
    Rule(
        "received in forward, given up in backward",
        Category.ACTIVATION,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.COMMUNICATION) & _does(life, FORWARD) & (life.freed_in == BACKWARD),
    ),
    Rule(
        "sent or received",
        Category.COMMUNICATION,
        Confidence.HIGH,
        lambda life: life.marked(Mark.COMMUNICATION) & ~(life.steps_outlived > 0),
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
        lambda life: _does(life, OPTIMIZER) & life.same_span,
    ),
    Rule(
        "outlives the step that made it",
        Category.OPTIMIZER_STATE,
        Confidence.HIGH,
        lambda life: _does(life, OPTIMIZER) & ~life.cut_off,
    ),
    Rule(
        "recomputed in backward",
        Category.ACTIVATION,
        Confidence.HIGH,
        lambda life: life.marked(Mark.RECOMPUTE) & _does(life, BACKWARD),
    ),
    Rule(
        "given up in the backward that made it",
        Category.TEMPORARY,
        Confidence.HIGH,
        lambda life: _does(life, BACKWARD) & life.same_span,
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
        lambda life: _does(life, BACKWARD) & ~life.cut_off,
    ),
    Rule(
        "made by zero_grad",
        Category.GRADIENT,
        Confidence.MEDIUM,
        lambda life: _does(life, ZERO_GRAD) & ~life.same_span,
    ),
    Rule(
        "given up in the forward that made it",
        Category.TEMPORARY,
        Confidence.HIGH,
        lambda life: _does(life, FORWARD) & life.same_span,
    ),
    Rule(
        "made in forward, given up in backward",
        Category.ACTIVATION,
        Confidence.HIGH,
        lambda life: _does(life, FORWARD) & (life.freed_in == BACKWARD),
    ),
    Rule(
        "cut off by the end, like others of its line that were given up at once",
        Category.TEMPORARY,
        Confidence.MEDIUM,
        lambda life: life.cut_off & life.like_temporaries,
    ),
    Rule(
        "alive in the last step",
        Category.OPTIMIZER_STATE,
        Confidence.MEDIUM,
        lambda life: _does(life, OPTIMIZER) & ~life.older,
    ),
    Rule("alive in the last backward", Category.GRADIENT, Confidence.LOW, lambda life: _does(life, BACKWARD)),
    Rule(
        "alive after two more steps",
        Category.KEPT,
        Confidence.MEDIUM,
        lambda life: (_does(life, FORWARD) | _between_steps(life)) & (life.steps_outlived > 1) & ~life.older,
    ),
    Rule(
        "outlives the forward that made it",
        Category.ACTIVATION,
        Confidence.MEDIUM,
        lambda life: _does(life, FORWARD) & ~life.older,
    ),
    Rule(
        "first of the contiguous buffers",
        Category.PARAMETER,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.GRAD_BUFFER) & life.first_of_buffers & _of_setup(life),
    ),
    Rule(
        "contiguous gradient buffer",
        Category.MAIN_GRADIENT,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.GRAD_BUFFER) & _of_setup(life),
    ),
    Rule(
        "made by the optimizer at set-up",
        Category.OPTIMIZER_STATE,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.OPTIMIZER_CODE) & _of_setup(life),
    ),
    Rule(
        "made by a constructor at set-up",
        Category.PARAMETER,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.CONSTRUCTION) & (_of_setup(life) | life.older & life.lasting),
    ),
    Rule(
        "a data loader's",
        Category.INPUT,
        Confidence.MEDIUM,
        lambda life: life.marked(Mark.INPUT),
    ),
    Rule(
        "given up before anything else began",
        Category.TEMPORARY,
        Confidence.MEDIUM,
        lambda life: (life.own == Doing.UNKNOWN) & (life.born_in != Doing.UNKNOWN) & life.same_span,
    ),
    Rule(
        "made after forward, given up in backward",
        Category.ACTIVATION,
        Confidence.MEDIUM,
        lambda life: _between(life, FORWARD) & (life.freed_in == BACKWARD),
    ),
    Rule(
        "alive after the last forward",
        Category.ACTIVATION,
        Confidence.LOW,
        lambda life: _between(life, FORWARD) & life.cut_off,
    ),
    Rule(
        "made between a step and the next forward",
        Category.INPUT,
        Confidence.LOW,
        lambda life: (_between(life, OPTIMIZER) | _between(life, ZERO_GRAD)) & (life.steps_outlived < 2),
    ),
    Rule(
        "made before the recording, given up in backward",
        Category.ACTIVATION,
        Confidence.MEDIUM,
        lambda life: life.older & (life.freed_in == BACKWARD),
    ),
)
"""In order; the first that holds counts. Lifetimes are those of PyTorch's autograd: what forward saves, backward gives
up (torch/csrc/autograd/saved_variable.h), gradients live from backward to the step or to ``zero_grad``."""
