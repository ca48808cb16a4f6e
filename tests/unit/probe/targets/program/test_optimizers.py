from __future__ import annotations

import torch

from oomscope.probe.targets.program.optimizers import Optimizers


def made(optimizers: Optimizers, count: int = 2) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)]} for _ in range(count)])
    optimizers.see(optimizer)
    return optimizer


def test_a_step_of_all_parameters_is_an_iteration_and_no_part_is_awaited() -> None:
    optimizers = Optimizers()
    first, other = made(optimizers), made(optimizers)
    for _ in range(3):  # without a backward pass between them
        assert optimizers.step_counts(first, 1)
        assert not optimizers.awaits_part
        assert not optimizers.step_counts(other, 1)


def test_an_optimizer_that_is_gone_is_followed_by_the_next() -> None:
    optimizers = Optimizers()
    first, second = made(optimizers), made(optimizers)
    assert optimizers.step_counts(first, 1)
    assert not optimizers.step_counts(second, 1)
    del first
    assert optimizers.step_counts(second, 1)


def test_steps_of_parts_are_one_iteration_which_is_over_after_as_many_as_the_one_before_had() -> None:
    optimizers = Optimizers()
    optimizer = made(optimizers, count=3)
    groups, seen = optimizer.param_groups, []
    for backwards in (1, 2):
        for group in groups:
            optimizer.param_groups = [group]
            seen.append((optimizers.step_counts(optimizer, backwards), optimizers.awaits_part))
    assert seen[:3] == [(True, True), (False, True), (False, True)], "how many there are is not known yet"
    assert seen[3:] == [(True, True), (False, True), (False, False)]


def test_a_backward_pass_between_two_steps_separates_iterations() -> None:
    optimizers = Optimizers()
    optimizer = made(optimizers)
    groups = optimizer.param_groups
    for backwards, group in enumerate(groups):
        optimizer.param_groups = [group]
        assert optimizers.step_counts(optimizer, backwards)
