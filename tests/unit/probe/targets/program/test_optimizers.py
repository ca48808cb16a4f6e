from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from oomscope.probe.targets.program import optimizers as optimizers_module
from oomscope.probe.targets.program.optimizers import LONGEST_WAIT, Optimizers

ON_CARD = SimpleNamespace(device=torch.device("cuda"))


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


@pytest.fixture
def on_card(monkeypatch) -> None:
    monkeypatch.setattr(optimizers_module, "local_part", lambda tensor: ON_CARD)


def test_an_optimizer_that_steps_less_often_is_waited_for_until_its_second_step(on_card) -> None:
    optimizers = Optimizers()
    first, seldom = made(optimizers), made(optimizers)
    late = []
    for iteration in range(1, LONGEST_WAIT + 1):
        assert optimizers.step_counts(first, iteration)
        late.append(optimizers.is_one_late(iteration, asked=3))
        if iteration % 4 == 0:
            optimizers.step_counts(seldom, iteration)
    assert [iteration for iteration, is_late in enumerate(late, 1) if is_late] == [3, 4, 5, 6, 7, 8]


def test_an_optimizer_that_never_steps_is_waited_for_no_longer_than_a_bound(on_card) -> None:
    optimizers = Optimizers()
    first, idle = made(optimizers), made(optimizers)
    optimizers.step_counts(first, 1)
    waits = [optimizers.is_one_late(iteration, asked=1) for iteration in (1, LONGEST_WAIT - 1, LONGEST_WAIT)]
    assert waits == [True, True, False]
    assert optimizers.count_late(1) == 1
    del idle
    assert not optimizers.is_one_late(1, asked=1), "it is gone"


def test_two_optimizers_of_each_iteration_are_waited_for_only_where_one_iteration_is_asked_for(on_card) -> None:
    optimizers = Optimizers()
    first, second = made(optimizers), made(optimizers)
    late = []
    for iteration in (1, 2, 3):
        optimizers.step_counts(first, iteration)
        late.append(optimizers.is_one_late(iteration, asked=iteration))
        optimizers.step_counts(second, iteration)
    assert late == [True, False, False]


def test_a_wrapper_weights_that_have_master_weights_and_what_is_frozen_are_not_waited_for(on_card) -> None:
    optimizers = Optimizers()
    inner, frozen = made(optimizers), made(optimizers)
    outer = torch.optim.SGD([{"params": group["params"]} for group in inner.param_groups])
    optimizers.see(outer)
    half = [each.detach().bfloat16().requires_grad_() for group in inner.param_groups for each in group["params"]]
    of_half = torch.optim.SGD(half)
    optimizers.see(of_half)
    for group in frozen.param_groups:
        group["params"][0].requires_grad = False
    for _ in range(2):
        optimizers.step_counts(inner, 1)
    assert optimizers.count_late(2) == 0


def test_an_optimizer_on_the_host_is_not_waited_for() -> None:
    optimizers = Optimizers()
    first, host = made(optimizers), made(optimizers)
    optimizers.step_counts(first, 1)
    assert optimizers.count_late(1) == 0
    assert host.param_groups
