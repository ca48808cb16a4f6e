"""Two runs under two rules of values, compared request by request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.analysis.value_dependence import Difference, first_difference
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.trace import Action, Frame, Stack, Trace

sizes = st.lists(st.integers(1, 4), max_size=12)


def stack_of(number: int) -> Stack:
    return (Frame("train.py", number, "step"),)


def trace_of(requests: list[int], *, noise: int = 0) -> Trace:
    """Return a trace that asks for ``requests``, request k in line k, with other events between them."""
    builder = TraceBuilder()
    for number, size in enumerate(requests):
        for _ in range(noise):
            builder.event(Action.SEGMENT_ALLOC, 1 << 30, 1 << 21)
        builder.event(Action.ALLOC, 0x1000 * number, size, stack=stack_of(number))
    return builder.build()


@given(sizes, sizes)
def test_the_first_difference_is_that_of_the_sequences(ours: list[int], theirs: list[int]) -> None:
    found = first_difference(trace_of(ours), trace_of(theirs, noise=2))
    place = next((k for k in range(max(len(ours), len(theirs))) if ours[k : k + 1] != theirs[k : k + 1]), None)
    if place is None:
        assert ours == theirs
        assert found is None
    else:
        expected = Difference(
            requested_bytes=next(iter(ours[place : place + 1]), None),
            other_bytes=next(iter(theirs[place : place + 1]), None),
            stack=stack_of(place),
        )
        assert found == expected


def test_a_refused_request_counts() -> None:
    builder = TraceBuilder()
    builder.event(Action.OOM, 0, 7, stack=stack_of(3))
    found = first_difference(builder.build(), trace_of([8]))
    assert found is not None
    assert (found.requested_bytes, found.other_bytes, found.stack) == (7, 8, stack_of(3))


def test_the_line_of_the_forward_operation_counts_for_one_in_backward() -> None:
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, 7, stack=stack_of(1), forward_stack=stack_of(2))
    found = first_difference(builder.build(), trace_of([]))
    assert found is not None
    assert found.stack == stack_of(2)
    assert str(found) == "7 B under the one rule, nothing more under the other"
