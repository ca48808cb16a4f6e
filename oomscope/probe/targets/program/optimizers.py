"""The optimizers of a program: which of their steps are iterations, when one is over, and which step seldom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import Tensor, dtype
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from oomscope.capture.steps import FirstOptimizer
from oomscope.probe.recording.blocks import local_part

LONGEST_WAIT: Final = 12
"""Iterations in which other optimizers are waited for: the generator of a WGAN, which steps in every fifth, makes its
second step in the tenth."""
_STEPS: Final = 2
"""After the first step an optimizer has its states, and gradients beside them in the second."""


class Optimizers:
    """Follows optimizers from their making on, and holds none of them."""

    def __init__(self) -> None:
        self._first = FirstOptimizer()
        self._made_with = WeakIdKeyDictionary()
        self._steps = WeakIdKeyDictionary()
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
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        first = self._first
        if not first.steps(optimizer):
            return False
        is_iteration = first.counts(optimizer, backwards)
        is_partial = _count_parameters(optimizer) < self._made_with.get(optimizer, 0)
        self.awaits_part = first.parts < first.parts_before if first.parts_before else is_partial
        return is_iteration

    def is_one_late(self, iterations: int, asked: int) -> bool:
        """Return whether another optimizer is to be waited for after so many ``iterations``, of which ``asked`` do."""
        return asked <= iterations < LONGEST_WAIT and self.count_late(_steps_of(asked)) > 0

    def is_late_no_more(self, optimizer: Optimizer, asked: int) -> bool:
        """Return whether an optimizer has just made the steps that are waited for."""
        return bool(self._steps.get(optimizer, 0) == _steps_of(asked))

    def count_late(self, steps: int) -> int:
        """Return how many optimizers made fewer than ``steps``, though they have parameters on the card to train.

        One whose parameters another one steps (a wrapper, the optimizer of an earlier phase), or copies of them in
        another type (master weights), is not late.
        """
        late = [each for each in self._made_with if self._steps.get(each, 0) < steps]
        others = [each for each, made in self._steps.items() if made >= steps] if late else []
        stepped = {id(parameter) for each in others for parameter in _parameters(each)}
        types_of: dict[int, list[set[dtype]]] = {}
        for each in others:
            types_of.setdefault(_count_numbers(each), []).append(_types(each))
        return sum(
            any(map(_is_trained_on_card, _parameters(each)))
            and stepped.isdisjoint(map(id, _parameters(each)))
            and not any(map(_types(each).isdisjoint, types_of.get(_count_numbers(each), ())))
            for each in late
        )


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _count_parameters(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _count_numbers(optimizer: Optimizer) -> int:
    return sum(each.numel() for each in _parameters(optimizer))


def _types(optimizer: Optimizer) -> set[dtype]:
    return {each.dtype for each in _parameters(optimizer)}


def _steps_of(asked: int) -> int:
    """Return how many steps each optimizer is to make where so many iterations are asked for."""
    return max(1, min(_STEPS, asked - 1))


def _is_trained_on_card(parameter: Tensor) -> bool:
    return parameter.requires_grad and local_part(parameter).device.type == "cuda"
