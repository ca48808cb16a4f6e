"""The optimizers of a program: which of their steps are iterations, when one is over, and which step seldom."""

from __future__ import annotations

import weakref
from typing import Final

from torch import Tensor, dtype
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from oomscope.capture.steps import FirstOptimizer, count_stepped, stepped_by
from oomscope.probe.recording.blocks import local_part

LONGEST_WAIT: Final = 12
"""Iterations in which other optimizers are waited for: the generator of a WGAN, which steps in every fifth, makes its
second step in the tenth."""
_STEPS: Final = 2
"""Steps to measure: an optimizer has its states after the first, and gradients beside them in the second."""


class Optimizers:
    """Follows optimizers from their making on, and holds none of them.

    Once ``asked`` iterations are over, :attr:`waits` says whether a step is missing: of an optimizer that steps less
    often than the first, or of further parts of the iteration.

    DeepSpeed's ZeRO lets an optimizer step some of its parameters at a time. Its steps are parts of one iteration while
    they follow each other without a backward pass, and each begins with a parameter that none of them began with.
    """

    def __init__(self, asked: int) -> None:
        self.iterations = 0
        self.has_waited = False
        """Whether another optimizer was waited for."""
        self._asked = asked
        self._first = FirstOptimizer()
        self._began_with: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        """The first parameter of each part of the last iteration."""
        self._parts = 0
        """Number of parts of the last iteration so far."""
        self._parts_before = 0
        """Number of parts of the iteration before it; 0 without one."""
        self._backwards = 0
        self._made_with = WeakIdKeyDictionary()
        self._steps = WeakIdKeyDictionary()
        self._awaits_part = False
        """Whether the optimizer that stepped first may step further parameters in this iteration."""
        self._awaits_other = False
        """Whether another optimizer is late."""
        self._steps_meanwhile = 0
        """Steps of others while one is waited for: the first optimizer may never step again."""

    def see(self, optimizer: Optimizer) -> None:
        """Note an optimizer that has been made."""
        self._made_with[optimizer] = count_stepped(optimizer)

    @property
    def waits(self) -> bool:
        """Whether a step is to be waited for."""
        return self._awaits_part or self._awaits_other

    def step(self, optimizer: Optimizer, backwards: int) -> bool:
        """Count a step; return whether it is one more iteration. ``backwards`` passes were begun before it.

        An iteration has as many parts as the one before it. In the first one, an optimizer that steps fewer parameters
        than it was made with may step others.
        """
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if self._first.optimizer is None:
            self._parts = 0
        is_first = self._first.steps(optimizer)
        is_iteration = is_first and not self._goes_on(optimizer, backwards)
        if is_first:
            is_partial = count_stepped(optimizer) < self._made_with.get(optimizer, 0)
            self._awaits_part = self._parts < self._parts_before if self._parts_before else is_partial
        if is_iteration:
            self.iterations += 1
            self._look_for_late()
        elif self._awaits_other:
            self._wait_longer(optimizer)
        return is_iteration

    def begin_iteration(self) -> None:
        """Wait for no further part of the last one."""
        self._awaits_part = False

    def stop_waiting(self) -> None:
        """Wait for no other optimizer until the next iteration."""
        self._awaits_other = False

    def _goes_on(self, optimizer: Optimizer, backwards: int) -> bool:
        """Return whether a step is a further part of the last iteration; if not, it begins another."""
        first = next(stepped_by(optimizer), None)
        goes_on = (
            first is not None
            and id(first) not in self._began_with
            and backwards == self._backwards
            and 0 < self._parts == len(self._began_with)  # fewer if a parameter is gone: the program made others
        )
        if not goes_on:
            self._began_with.clear()
            self._backwards, self._parts_before, self._parts = backwards, self._parts, 0
        if first is not None:
            self._began_with[id(first)] = first
        self._parts += 1
        return goes_on

    def _wait_longer(self, optimizer: Optimizer) -> None:
        """Count a step that is no iteration. After too many the wait ends; the late optimizer's own may end it, too."""
        self._steps_meanwhile += 1
        if self._steps_meanwhile >= LONGEST_WAIT * len(self._made_with):
            self._awaits_other = False
        elif self._steps.get(optimizer, 0) == _needed_steps(self._asked):
            self._look_for_late()

    def _look_for_late(self) -> None:
        is_due = self._asked <= self.iterations < LONGEST_WAIT
        self._awaits_other = is_due and self.count_late(_needed_steps(self._asked)) > 0
        self.has_waited = self.has_waited or self._awaits_other

    def count_late(self, steps: int) -> int:
        """Return how many optimizers made fewer than ``steps``, though they have parameters on the card to train.

        One whose parameters another one steps (a wrapper, the optimizer of an earlier phase), or copies of them in
        another type (master weights), is not late.
        """
        late = [each for each in self._made_with if self._steps.get(each, 0) < steps]
        others = [each for each, made in self._steps.items() if made >= steps] if late else []
        stepped = {id(parameter) for each in others for parameter in stepped_by(each)}
        types_of: dict[int, list[set[dtype]]] = {}
        for each in others:
            types_of.setdefault(_count_numbers(each), []).append(_types(each))
        return sum(
            any(map(_is_trained_on_card, stepped_by(each)))
            and stepped.isdisjoint(map(id, stepped_by(each)))
            and not any(map(_types(each).isdisjoint, types_of.get(_count_numbers(each), ())))
            for each in late
        )


def _count_numbers(optimizer: Optimizer) -> int:
    return sum(each.numel() for each in stepped_by(optimizer))


def _types(optimizer: Optimizer) -> set[dtype]:
    return {each.dtype for each in stepped_by(optimizer)}


def _needed_steps(asked: int) -> int:
    """Return how many steps each optimizer is to make where so many iterations are asked for."""
    return max(1, min(_STEPS, asked - 1))


def _is_trained_on_card(parameter: Tensor) -> bool:
    return parameter.requires_grad and local_part(parameter).device.type == "cuda"
