"""Leaks that do not rise at the end of every iteration, and what fills, is bounded or is made late and is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.leaks import find_leak
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Category, Moment
from oomscope.units import GiB, MiB
from tests.unit.snapshot.foreign import STATES
from tests.unit.snapshot.machine import Machine

LENGTHS = (30, 7, 22, 41, 3, 18, 35, 11)
"""MiB of what is alive at the step, which vary from iteration to iteration."""
KEEPS, BATCH = 11, 9
Body = Callable[[Machine, int], None]


def recorded(body: Body, iterations: int = 40) -> Timeline:
    """Return iterations of varying length, each of which does ``body``; the last one is not whole."""
    machine, batch = Machine(16 * GiB), None
    for number in range(iterations):
        machine.moment = Moment("forward", number, 0)
        if batch is not None:
            machine.free(batch)
        batch = machine.alloc(LENGTHS[number % len(LENGTHS)] * MiB, line=BATCH, category=Category.UNKNOWN)
        machine.moment = Moment("backward", number, 0)
        body(machine, number)
        machine.moment = Moment("optimizer", number, 0)
        machine.free(machine.alloc(MiB, line=8, category=Category.TEMPORARY))
    machine.moment = Moment("forward", iterations, 0)
    machine.alloc(MiB, line=BATCH, category=Category.UNKNOWN)
    return Timeline.of(machine.trace(), machine.segments())


def keep(machine: Machine, mib: int, line: int = KEEPS) -> int | None:
    return machine.alloc(mib * MiB, line=line, category=Category.UNKNOWN)


def every(period: int) -> Body:
    return lambda machine, number: None if number % period else keep(machine, 12) and None


@pytest.mark.parametrize(("period", "mib"), [(1, 12), (2, 6), (5, 2.4)])
def test_what_stays_at_a_steady_rate_is_a_leak_though_lengths_vary(period, mib):
    leak = find_leak(recorded(every(period), 41))
    assert leak is not None
    assert isinstance(leak.site, Site)
    assert leak.site.line == KEEPS
    assert leak.bytes_per_iteration == int(mib * MiB)


def test_of_few_iterations_none_is_called_steady():
    assert find_leak(recorded(every(1), 8)) is None
    assert find_leak(recorded(every(5), 20)) is None


def test_a_buffer_that_fills_is_no_leak():
    assert find_leak(recorded(lambda machine, number: keep(machine, 12) and None if number < 25 else None)) is None


def test_a_queue_that_drops_its_oldest_is_no_leak():
    queue: list[int] = []

    def push(machine: Machine, _: int) -> None:
        queue.append(keep(machine, 12))
        if len(queue) > 30:
            machine.free(queue.pop(0))

    assert find_leak(recorded(push)) is None


def test_a_cache_that_saturates_is_no_leak():
    """Of the later lengths more and more were seen before; blocks of one size are of several keys."""
    fresh = {number for number in range(40) if number < 10 or number % 7 == 0}
    assert find_leak(recorded(lambda machine, n: keep(machine, 4 + n % 3) and None if n in fresh else None)) is None


def test_a_cache_with_a_block_of_each_size_is_not_called_a_leak():
    assert find_leak(recorded(lambda machine, number: keep(machine, 4 + number) and None)) is None


def test_states_that_are_made_as_parameters_come_to_be_trained_are_no_leak():
    def body(machine: Machine, _: int) -> None:
        machine.alloc(12 * MiB, stack=STATES, category=Category.UNKNOWN)

    assert find_leak(recorded(body)) is None


def test_an_average_of_the_weights_is_no_leak():
    average: list[int] = []

    def body(machine: Machine, _: int) -> None:
        average.append(keep(machine, 50))
        if len(average) > 1:
            machine.free(average.pop(0))

    assert find_leak(recorded(body)) is None


def test_a_growing_batch_is_no_leak():
    batch: list[int] = []

    def body(machine: Machine, number: int) -> None:
        batch.append(keep(machine, 2 * number + 1))
        if len(batch) > 1:
            machine.free(batch.pop(0))

    assert find_leak(recorded(body)) is None


def test_a_cache_of_keys_and_values_that_is_given_up_with_its_sequence_is_no_leak():
    sequence: list[int] = []

    def body(machine: Machine, number: int) -> None:
        if number % 10 == 0:
            while sequence:
                machine.free(sequence.pop())
        sequence.append(keep(machine, 12))

    assert find_leak(recorded(body)) is None


@given(st.lists(st.booleans(), min_size=10, max_size=40), st.integers(1, 4))
def test_what_is_given_up_before_the_failure_is_no_leak(stays, lasts):
    """Blocks that live for a number of iterations, however many of these make one."""
    alive: list[tuple[int, int]] = []

    def body(machine: Machine, number: int) -> None:
        while alive and alive[0][0] <= number - lasts:
            machine.free(alive.pop(0)[1])
        if stays[number]:
            alive.append((number, keep(machine, 12)))

    assert find_leak(recorded(body, len(stays))) is None


def test_a_cache_by_length_in_each_of_four_layers_is_no_leak() -> None:
    """Of a length that is new, each layer keeps a block of one size; most lengths have not come yet."""
    order = [(7 * number) % 61 for number in range(40)]

    def cached(machine: Machine, number: int) -> None:
        for _ in range(4):
            keep(machine, 1 + order[number])

    assert find_leak(recorded(cached)) is None
