"""Streams, events and captures of the virtual card."""

from __future__ import annotations

import pytest

from tests.unit.virtual.on_card import on_card


def test_events_complete_at_once_and_count_time() -> None:
    said = on_card(
        """
        import time
        first, second, never, untimed = event(), event(), event(), event(2)
        call("cudaEventRecord", first, None)
        time.sleep(0.02)
        call("cudaEventRecord", second, stream())
        call("cudaEventRecord", untimed, None)
        answer = c_float()
        bad = [status("cudaEventElapsedTime", byref(answer), first, other) for other in (never, untimed)]
        say([status("cudaEventQuery", second), milliseconds(first, second), bad])
        """
    )
    assert said[0] == 0
    assert said[1] == 1
    assert said[2] == [400, 400]


POLLS = """
    side, other = stream(), stream()
    def poll(event, times):
        return [status("cudaEventQuery", event) for _ in range(times)]
    """


@pytest.mark.parametrize(
    ("lag", "polled", "pending"),
    [(0, [0, 0], [0, 0, 0, 0]), (1, [600, 0], [1, 0, 0, 0]), (3, [600, 600], [2, 1, 1, 0])],
)
def test_an_event_completes_after_as_many_polls_as_the_lag(lag: int, polled: list[int], pending: list[int]) -> None:
    """PyTorch's allocator polls the first pending event of each stream once for every allocation."""
    said = on_card(
        POLLS
        + """
    first, second = event(), event()
    call("cudaEventRecord", first, side)
    before = poll(first, 2)
    call("cudaEventRecord", second, side)
    queue, left = [first, second], []
    for allocation in range(4):
        while queue and status("cudaEventQuery", queue[0]) == 0:
            queue.pop(0)
        left.append(len(queue))
    say([before, left])
    """,
        event_lag=lag,
    )
    assert said == [polled, pending]


def test_a_synchronisation_completes_its_stream_and_what_that_waited_for() -> None:
    said = on_card(
        POLLS
        + """
    apart, waited, last = event(), event(), event()
    call("cudaEventRecord", apart, other)
    third = stream()
    call("cudaEventRecord", waited, third)
    call("cudaStreamWaitEvent", side, waited, c_uint(0))
    call("cudaEventRecord", last, side)
    call("cudaStreamSynchronize", side)
    steps = [poll(last, 1), poll(waited, 1), poll(apart, 1)]
    call("cudaEventSynchronize", apart)
    steps.append(poll(apart, 1))
    call("cudaEventRecord", apart, other)
    call("cudaDeviceSynchronize")
    steps.append(poll(apart, 1))
    say(steps)
    """,
        event_lag=1000,
    )
    assert said == [[0], [0], [600], [0], [0]]


def test_waiting_does_not_complete() -> None:
    said = on_card(
        POLLS
        + """
    done = event()
    call("cudaEventRecord", done, other)
    call("cudaStreamWaitEvent", side, done, c_uint(0))
    say(poll(done, 1) + [status("cudaStreamQuery", side), status("cudaStreamQuery", other)])
    """,
        event_lag=10,
    )
    assert said == [600, 0, 600]


def test_host_functions_run_at_once() -> None:
    said = on_card(
        """
        called = []
        function = ctypes.CFUNCTYPE(None, c_void_p)(lambda argument: called.append(argument))
        call("cudaLaunchHostFunc", None, function, c_void_p(7))
        say(called)
        """
    )
    assert said == [7]


def test_priorities_and_flags() -> None:
    said = on_card(
        """
        low, high, made, value = c_int(), c_int(), c_void_p(), c_int()
        call("cudaDeviceGetStreamPriorityRange", byref(low), byref(high))
        answers = [low.value, high.value]
        for priority in (0, -1, -5, -9, 3):
            call("cudaStreamCreateWithPriority", byref(made), c_uint(1), c_int(priority))
            call("cudaStreamGetPriority", made, byref(value))
            answers.append(value.value)
        call("cudaStreamDestroy", made)
        say([*answers, status("cudaStreamSynchronize", made)])
        """
    )
    assert said == [0, -5, 0, -1, -5, -5, 0, 400]


CAPTURE = """
    graph, executable, info, count = c_void_p(), c_void_p(), c_int(), c_size_t()
    def capturing(which):
        call("cudaStreamIsCapturing", which, byref(info))
        return info.value
    def nodes():
        call("cudaGraphGetNodes", graph, None, byref(count))
        return count.value
    side, other = stream(), stream()
    p = malloc(MiB)
    """


def test_a_captured_graph_does_its_copies_when_it_is_launched() -> None:
    said = on_card(
        CAPTURE
        + """
    source = ctypes.create_string_buffer(b"first", 5)
    call("cudaStreamBeginCapture", side, c_int(0))
    call("cudaMemsetAsync", c_void_p(p), c_int(1), c_size_t(8), side)
    call("cudaMemcpyAsync", c_void_p(p), source, c_size_t(5), c_int(1), side)
    launches = state().launches
    assert launch(ctypes.create_string_buffer(16), pointer(p + 512), stream=side) == 0
    called = []
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda argument: called.append(argument))
    call("cudaLaunchHostFunc", side, function, c_void_p(7))
    during = [capturing(side), capturing(other), state().launches - launches, unknown(p, 8)]
    call("cudaStreamEndCapture", side, byref(graph))
    call("cudaGraphInstantiate", byref(executable), graph, c_uint64(0))
    counted = nodes()
    call("cudaGraphDestroy", graph)
    source.raw = b"later"
    to_device(p + 512, b"x")
    call("cudaGraphLaunch", executable, side)
    say([during, counted, capturing(side), to_host(p, 8).hex(), unknown(p, 8), unknown(p + 512, 1), called])
    """
    )
    assert said == [[1, 0, 0, 8], 4, 0, b"later\1\1\1".hex(), 0, 1, [7]]


def test_an_event_takes_another_stream_into_the_capture_and_back() -> None:
    said = on_card(
        CAPTURE
        + """
    fork, join = event(), event()
    call("cudaStreamBeginCapture", side, c_int(0))
    call("cudaEventRecord", fork, side)
    call("cudaStreamWaitEvent", other, fork, c_uint(0))
    joined = capturing(other)
    call("cudaMemsetAsync", c_void_p(p), c_int(1), c_size_t(8), other)
    queried = status("cudaEventQuery", fork)
    call("cudaEventRecord", join, other)
    call("cudaStreamWaitEvent", side, join, c_uint(0))
    ended = status("cudaStreamEndCapture", side, byref(graph))
    say([joined, queried, ended, capturing(other), nodes()])
    """
    )
    assert said == [1, 907, 0, 0, 1]


def test_what_a_capture_does_not_allow() -> None:
    said = on_card(
        CAPTURE
        + """
    fork = event()
    refused = [status("cudaStreamBeginCapture", None, c_int(0)), status("cudaStreamEndCapture", side, byref(graph))]
    call("cudaStreamBeginCapture", side, c_int(0))
    refused.append(status("cudaStreamBeginCapture", side, c_int(0)))
    refused.append(status("cudaDeviceSynchronize"))
    refused.append(status("cudaStreamSynchronize", other))
    refused.append(status("cudaStreamSynchronize", side))
    refused.append(capturing(side))
    refused.append(status("cudaStreamEndCapture", side, byref(graph)))
    call("cudaStreamBeginCapture", side, c_int(0))
    call("cudaEventRecord", fork, side)
    call("cudaStreamWaitEvent", other, fork, c_uint(0))
    call("cudaMemsetAsync", c_void_p(p), c_int(1), c_size_t(8), other)
    refused.append(status("cudaStreamEndCapture", other, byref(graph)))
    refused.append(status("cudaStreamEndCapture", side, byref(graph)))
    refused.append(capturing(other))
    say(refused)
    """
    )
    assert said == [900, 401, 401, 900, 0, 900, 2, 901, 903, 904, 0]
