"""The optimizers of a program: which of their steps are iterations, and when the last one is over."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from oomscope.capture.steps import FirstOptimizer


class Optimizers:
    """Follows optimizers from their making on, and holds none of them."""

    def __init__(self) -> None:
        self._first = FirstOptimizer()
        self._made_with = WeakIdKeyDictionary()
        self.awaits_part = False
        """Whether the optimizer that stepped first may step further parameters in this iteration."""

    def see(self, optimizer: Optimizer) -> None:
        """Note an optimizer that has been made."""
        self._made_with[optimizer] = _count_parameters(optimizer)

    def step_counts(self, optimizer: Optimizer, backwards: int) -> bool:
        """Return whether a step is one more iteration; ``backwards`` passes were begun before it.

        How many parts an iteration has, the one before it tells. In the first one, an optimizer that steps fewer
        parameters than it was made with may step others.
        """
        first = self._first
        if not first.steps(optimizer):
            return False
        is_iteration = first.counts(optimizer, backwards)
        is_partial = _count_parameters(optimizer) < self._made_with.get(optimizer, 0)
        self.awaits_part = first.parts < first.parts_before if first.parts_before else is_partial
        return is_iteration


def _count_parameters(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)
