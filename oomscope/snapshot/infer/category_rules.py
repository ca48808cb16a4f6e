"""The table of rules by which the category of a block is inferred: who made it, and how long it lived.

Each row is a condition, the category that it gives and how sure that is. The first row that holds counts, so a rule may
take for granted that those above it do not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from oomscope.snapshot.infer.activity import Mark, Phase
from oomscope.snapshot.infer.gradient_sizes import fits_parameter
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


FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.ZERO_GRAD
LOW, MEDIUM, HIGH = Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH
STATE, MAIN_GRADIENT = Category.OPTIMIZER_STATE, Category.MAIN_GRADIENT
PARAMETER, GRADIENT, ACTIVATION = Category.PARAMETER, Category.GRADIENT, Category.ACTIVATION
TEMPORARY, WORKSPACE, COMMUNICATION = Category.TEMPORARY, Category.WORKSPACE, Category.COMMUNICATION
INPUT, KEPT = Category.INPUT, Category.KEPT

CUBLAS_WORKSPACES: Final = (32 * MiB, (4096 * 2 + 16 * 8) * KiB)
"""Bytes of a cuBLAS handle's workspace on Hopper and newer, and before (PyTorch
aten/src/ATen/cuda/CublasHandlePool.cpp, ``getChosenWorkspaceSize``)."""


def _cublas_workspace(b: Life) -> Mask:
    """Torch up to 2.14 keeps one for each thread and stream; later ones make it for each product, behind its result."""
    of_size = np.isin(b.size, CUBLAS_WORKSPACES)
    kept = of_size & b.lasting & (b.alone | (b.steps_outlived > 1))
    passing = of_size & b.brief
    return np.asarray(passing if not kept.any() and (passing & b.follows).any() else kept)


def _moved_with_module(b: Life) -> Mask:
    return np.asarray(b.marked(Mark.MODULE_MOVE) & ~b.made_in(FORWARD) & (b.lasting | (b.steps_outlived > 0)))


def _alive_after_two_steps(b: Life) -> Mask:
    untold = (b.own == Phase.UNKNOWN) & (b.born_in != Phase.UNKNOWN)
    return np.asarray((b.made_in(FORWARD) | untold) & (b.steps_outlived > 1))


def _freed_before_anything(b: Life) -> Mask:
    return np.asarray((b.own == Phase.UNKNOWN) & (b.born_in != Phase.UNKNOWN) & b.same_span)


def _before_next_forward(b: Life) -> Mask:
    return np.asarray((b.between(OPTIMIZER) | b.between(ZERO_GRAD)) & (b.steps_outlived < 2))


def _received_for_backward(b: Life) -> Mask:
    return np.asarray(b.marked(Mark.COMMUNICATION) & b.made_in(FORWARD) & (b.freed_in == BACKWARD))


RULES: Final = (
    Rule("workspace's function", WORKSPACE, HIGH, lambda b: b.marked(Mark.WORKSPACE)),
    Rule("weights split between ranks", PARAMETER, HIGH, lambda b: b.marked(Mark.WEIGHTS)),
    Rule("size and life of a cuBLAS workspace", WORKSPACE, MEDIUM, _cublas_workspace),
    Rule("moved with its module", PARAMETER, HIGH, _moved_with_module),
    Rule("received in forward, freed in backward", ACTIVATION, MEDIUM, _received_for_backward),
    Rule("buckets of gradients", COMMUNICATION, HIGH, lambda b: b.marked(Mark.BUCKETS) & ~b.same_span),
    Rule("sent or received", COMMUNICATION, HIGH, lambda b: b.marked(Mark.COMMUNICATION) & ~(b.steps_outlived > 0)),
    Rule("optimizer's state initialisation", STATE, HIGH, lambda b: b.marked(Mark.STATE_INIT) & ~b.same_span),
    Rule("freed in the step that made it", TEMPORARY, HIGH, lambda b: b.made_in(OPTIMIZER) & b.same_span),
    Rule("outlives the step that made it", STATE, HIGH, lambda b: b.made_in(OPTIMIZER) & ~b.cut_off),
    Rule("recomputed in backward", ACTIVATION, HIGH, lambda b: b.marked(Mark.RECOMPUTE) & b.made_in(BACKWARD)),
    Rule("freed in the backward that made it", TEMPORARY, HIGH, lambda b: b.made_in(BACKWARD) & b.same_span),
    Rule("accumulated gradient", GRADIENT, HIGH, lambda b: b.marked(Mark.ACCUMULATE_GRAD) & ~b.same_span),
    Rule("outlives the backward that made it", GRADIENT, HIGH, lambda b: b.made_in(BACKWARD) & ~b.cut_off),
    Rule("made by zero_grad", GRADIENT, MEDIUM, lambda b: b.made_in(ZERO_GRAD) & ~b.same_span),
    Rule("freed in the forward that made it", TEMPORARY, HIGH, lambda b: b.made_in(FORWARD) & b.same_span),
    Rule(
        "made in forward, freed in backward",
        ACTIVATION,
        HIGH,
        lambda b: b.made_in(FORWARD) & (b.freed_in == BACKWARD),
    ),
    Rule(
        "cut off by the end; others of its line were freed at once",
        TEMPORARY,
        MEDIUM,
        lambda b: b.cut_off & b.like_temporaries,
    ),
    Rule(
        "cut off in a step; all others of its line were freed at once",
        TEMPORARY,
        MEDIUM,
        lambda b: b.made_in(OPTIMIZER) & b.cut_off & b.like_gone,
    ),
    Rule(
        "cut off in a step; most others of its line outlive theirs",
        STATE,
        MEDIUM,
        lambda b: b.made_in(OPTIMIZER) & b.cut_off & b.like_kept,
    ),
    Rule(
        "cut off in a step that makes its states elsewhere",
        TEMPORARY,
        MEDIUM,
        lambda b: b.made_in(OPTIMIZER) & b.cut_off & b.marked(Mark.UPDATE),
    ),
    Rule("alive in the last step", STATE, LOW, lambda b: b.made_in(OPTIMIZER) & ~b.older),
    Rule("alive in the last backward", GRADIENT, LOW, lambda b: b.made_in(BACKWARD) & fits_parameter(b)),
    Rule("alive in the last backward, of no parameter's size", TEMPORARY, LOW, lambda b: b.made_in(BACKWARD)),
    Rule("alive after two more steps", KEPT, MEDIUM, _alive_after_two_steps),
    Rule("outlives the forward that made it", ACTIVATION, MEDIUM, lambda b: b.made_in(FORWARD) & ~b.older),
    Rule(
        "first of the contiguous buffers",
        PARAMETER,
        MEDIUM,
        lambda b: b.marked(Mark.GRAD_BUFFER) & b.first_of_buffers & b.of_setup,
    ),
    Rule("contiguous gradient buffer", MAIN_GRADIENT, MEDIUM, lambda b: b.marked(Mark.GRAD_BUFFER) & b.of_setup),
    Rule("made by the optimizer at set-up", STATE, MEDIUM, lambda b: b.marked(Mark.OPTIMIZER_CODE) & b.of_setup),
    Rule(
        "made by a constructor at set-up",
        PARAMETER,
        MEDIUM,
        lambda b: b.marked(Mark.CONSTRUCTION) & (b.of_setup | b.older & b.lasting),
    ),
    Rule("a data loader's", INPUT, MEDIUM, lambda b: b.marked(Mark.INPUT)),
    Rule("freed before anything else began", TEMPORARY, MEDIUM, _freed_before_anything),
    Rule(
        "made after forward, freed in backward",
        ACTIVATION,
        MEDIUM,
        lambda b: b.between(FORWARD) & (b.freed_in == BACKWARD),
    ),
    Rule("alive after the last forward", ACTIVATION, LOW, lambda b: b.between(FORWARD) & b.cut_off),
    Rule("made between a step and the next forward", INPUT, LOW, _before_next_forward),
    Rule(
        "made before the recording, freed in backward",
        ACTIVATION,
        MEDIUM,
        lambda b: b.older & (b.freed_in == BACKWARD),
    ),
)
"""Rules in order; the first that holds counts. Lifetimes are those of PyTorch's autograd: what forward saves, backward
gives up (torch/csrc/autograd/saved_variable.h), gradients live from backward to the step or to ``zero_grad``."""
