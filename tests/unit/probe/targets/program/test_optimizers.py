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
    optimizers = Optimizers(asked=3)
    first, other = made(optimizers), made(optimizers)
    for _ in range(3):  # without a backward pass between them
        assert optimizers.step(first, 1)
        assert not optimizers.waits
        assert not optimizers.step(other, 1)


def test_an_optimizer_that_is_gone_is_followed_by_the_next() -> None:
    optimizers = Optimizers(asked=3)
    first, second = made(optimizers), made(optimizers)
    assert optimizers.step(first, 1)
    assert not optimizers.step(second, 1)
    del first
    assert optimizers.step(second, 1)


def test_steps_of_parts_are_one_iteration_which_is_over_after_as_many_as_the_one_before_had() -> None:
    optimizers = Optimizers(asked=3)
    optimizer = made(optimizers, count=3)
    groups, seen = optimizer.param_groups, []
    for backwards in (1, 2):
        for group in groups:
            optimizer.param_groups = [group]
            seen.append((optimizers.step(optimizer, backwards), optimizers.waits))
    assert seen[:3] == [(True, True), (False, True), (False, True)], "how many there are is not known yet"
    assert seen[3:] == [(True, True), (False, True), (False, False)]


def test_a_backward_pass_between_two_steps_separates_iterations() -> None:
    optimizers = Optimizers(asked=3)
    optimizer = made(optimizers)
    groups = optimizer.param_groups
    for backwards, group in enumerate(groups):
        optimizer.param_groups = [group]
        assert optimizers.step(optimizer, backwards)


@pytest.fixture
def on_card(monkeypatch) -> None:
    monkeypatch.setattr(optimizers_module, "local_part", lambda tensor: ON_CARD)


def test_an_optimizer_that_steps_less_often_is_waited_for_until_its_second_step(on_card) -> None:
    optimizers = Optimizers(asked=3)
    first, seldom = made(optimizers), made(optimizers)
    late = []
    for iteration in range(1, LONGEST_WAIT + 1):
        assert optimizers.step(first, iteration)
        late.append(optimizers.waits)
        if iteration % 4 == 0:
            optimizers.step(seldom, iteration)
    assert [iteration for iteration, is_late in enumerate(late, 1) if is_late] == [3, 4, 5, 6, 7, 8]
    assert optimizers.has_waited


def test_an_optimizer_that_never_steps_is_waited_for_no_longer_than_a_bound(on_card) -> None:
    optimizers = Optimizers(asked=1)
    first, idle = made(optimizers), made(optimizers)
    waits = []
    for iteration in range(1, LONGEST_WAIT + 1):
        optimizers.step(first, iteration)
        waits.append(optimizers.waits)
    assert waits == [True] * (LONGEST_WAIT - 1) + [False]
    assert optimizers.count_late(1) == 1
    del idle
    assert optimizers.count_late(1) == 0, "it is gone"


def test_an_optimizer_is_waited_for_no_longer_where_others_alone_go_on(on_card) -> None:
    optimizers = Optimizers(asked=1)
    first, second, idle = made(optimizers), made(optimizers), made(optimizers)
    optimizers.step(first, 1)
    waits = []
    while optimizers.waits:
        optimizers.step(second, 2)
        waits.append(optimizers.waits)
    assert len(waits) == LONGEST_WAIT * 3
    assert idle.param_groups


def test_a_program_that_replays_its_step_waits_for_nothing(on_card) -> None:
    optimizers = Optimizers(asked=1)
    first, idle = made(optimizers), made(optimizers)
    optimizers.step(first, 1)
    optimizers.stop_waiting()
    assert not optimizers.waits
    assert idle.param_groups


@pytest.mark.parametrize(("asked", "waited"), [(1, [True]), (3, [False, False, False])])
def test_two_optimizers_of_each_iteration_are_waited_for_only_where_one_iteration_is_asked_for(
    asked: int, waited: list[bool], on_card
) -> None:
    optimizers = Optimizers(asked)
    first, second = made(optimizers), made(optimizers)
    waits = []
    for iteration in range(1, asked + 1):
        optimizers.step(first, iteration)
        waits.append(optimizers.waits)
        optimizers.step(second, iteration)
    assert waits == waited
    assert not optimizers.waits


def test_a_wrapper_weights_that_have_master_weights_and_what_is_frozen_are_not_waited_for(on_card) -> None:
    optimizers = Optimizers(asked=3)
    inner, frozen = made(optimizers), made(optimizers)
    outer = torch.optim.SGD([{"params": group["params"]} for group in inner.param_groups])
    optimizers.see(outer)
    half = [each.detach().bfloat16().requires_grad_() for group in inner.param_groups for each in group["params"]]
    of_half = torch.optim.SGD(half)
    optimizers.see(of_half)
    for group in frozen.param_groups:
        group["params"][0].requires_grad = False
    for _ in range(2):
        optimizers.step(inner, 1)
    assert optimizers.count_late(2) == 0


def test_an_optimizer_on_the_host_is_not_waited_for() -> None:
    optimizers = Optimizers(asked=3)
    first, host = made(optimizers), made(optimizers)
    optimizers.step(first, 1)
    assert optimizers.count_late(1) == 0
    assert host.param_groups
