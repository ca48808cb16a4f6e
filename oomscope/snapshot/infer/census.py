"""Tell parameters and optimizer states that were there before the recording by counting sizes.

A parameter, its gradient and its optimizer states are of the same shape. Where n gradients of a size are alive at a
time and n, 2n or 3n persistent blocks of that size are, they are the parameters and one or two states of each (Adam
keeps two: ``exp_avg`` and ``exp_avg_sq``, PyTorch torch/optim/adam.py). Which of the blocks is which stays open; the
bytes of each category do not depend on it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from oomscope.snapshot.infer.life import Mask
from oomscope.snapshot.lifetimes import Indices

MOST_STATES: Final = 3
"""States a parameter that are believed: Adam's two, and a master copy or ``max_exp_avg_sq``."""


def census(size: Indices, freed: Indices, persistent: Mask, gradients: Mask) -> tuple[Mask, Mask]:
    """Return which of ``persistent`` are taken for parameters, and which for optimizer states.

    States may be in twice the precision of the gradient; then they count from two a parameter on.

    Args:
        size: requested bytes of each block.
        freed: when each was given up; those that live longest are taken for the parameters, since an optimizer may
            make its states anew in each step, and parameters stay.
        persistent: blocks that nothing tells of and that were alive before the recording and at its end, or in a step.
        gradients: blocks that were alive as gradients at one moment.
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
