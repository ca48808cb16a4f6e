"""NCCL between processes that have a card each: the bytes that the cards hold really pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.virtual.on_card import on_card

CALLS = """
import os, time
communicator = joined(RANKS, RANK, b"world")

def counts(count, type=INT64):
    return c_size_t(count), c_int(type)

def send(pointer, count, peer):
    return status("ncclSend", pointer, *counts(count), c_int(peer), communicator, None)

def receive(pointer, count, peer):
    return status("ncclRecv", pointer, *counts(count), c_int(peer), communicator, None)
"""


def world(folder: Path, size: int, script: str, **settings: object) -> list[Any]:
    """Run a script as each rank of a world, which it knows as ``RANK`` of ``RANKS``; return what each rank said."""

    def rank(number: int) -> Any:
        return on_card(
            f"RANK, RANKS = {number}, {size}\n{CALLS}\n{script}",
            preamble="nccl",
            peers="processes",
            ledger=folder / "card",
            devices=1,
            **settings,
        )

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


@pytest.mark.parametrize(
    ("form", "type_", "operation", "first", "second", "result"),
    [
        ("2q", "INT64", "SUM", (1, 2**62), (-5, 2**62), [-4, -(2**63)]),
        ("2i", "INT32", "PRODUCT", (3, -2), (5, 7), [15, -14]),
        ("2i", "INT32", "AVG", (3, -2), (5, 8), [4, 3]),
        ("2f", "FLOAT", "MAX", (1.5, -0.25), (0.5, 3.0), [1.5, 3.0]),
        ("2d", "DOUBLE", "MIN", (1e300, -0.25), (0.5, 3.0), [0.5, -0.25]),
        ("2e", "HALF", "AVG", (1.5, 40000.0), (0.5, 40000.0), [1.0, float("inf")]),
        ("2H", "BF16", "SUM", (0x3FC0, 0x3F80), (0x4000, 0x4000), [0x4060, 0x4040]),
    ],
)
def test_a_reduction_of_what_each_rank_holds(
    tmp_path: Path, form: str, type_: str, operation: str, first: Any, second: Any, result: Any
) -> None:
    script = f"""
data = tensor({form!r}, *[{first!r}, {second!r}][RANK])
call("ncclAllReduce", data, data, *counts(2, {type_}), c_int({operation}), communicator, None)
say(read(data, {form!r}))
"""
    assert world(tmp_path, 2, script) == [result, result]


def test_data_that_pass_between_four_ranks(tmp_path: Path) -> None:
    script = """
own, many = tensor("q", RANK), tensor("4q", *(10 * RANK + i for i in range(4)))
gathered, exchanged, scattered, broadcast = (tensor("4q", 0, 0, 0, 0) for _ in range(4))
collected, parted, reduced = (tensor("4q", 0, 0, 0, 0) for _ in range(3))
call("ncclAllGather", own, gathered, *counts(1), communicator, None)
call("ncclAlltoAll", many, exchanged, *counts(1), communicator, None)
call("ncclReduceScatter", many, scattered, *counts(1), c_int(SUM), communicator, None)
call("ncclBroadcast", own, broadcast, *counts(1), c_int(2), communicator, None)
call("ncclGather", own, collected, *counts(1), c_int(1), communicator, None)
call("ncclScatter", many, parted, *counts(1), c_int(3), communicator, None)
call("ncclReduce", own, reduced, *counts(1), c_int(MAX), c_int(0), communicator, None)
say([read(gathered, "4q"), read(exchanged, "4q"), read(scattered, "q"), read(broadcast, "q"), read(collected, "4q"),
     read(parted, "q"), read(reduced, "q")])
"""
    said = world(tmp_path, 4, script)
    for rank, (gathered, exchanged, scattered, broadcast, collected, parted, reduced) in enumerate(said):
        assert gathered == [0, 1, 2, 3]
        assert exchanged == [rank, 10 + rank, 20 + rank, 30 + rank]
        assert scattered == [60 + 4 * rank]
        assert broadcast == [2]
        assert collected == ([0, 1, 2, 3] if rank == 1 else [0] * 4)
        assert parted == [30 + rank]
        assert reduced == ([3] if rank == 0 else [0])


def test_what_a_rank_does_not_hold_is_unknown_to_all(tmp_path: Path) -> None:
    script = """
own, gathered, total = c_void_p(malloc(8)), tensor("2q", 0, 0), tensor("q", 0)
if RANK: to_device(own.value, struct.pack("q", 7))
call("ncclAllGather", own, gathered, *counts(1), communicator, None)
call("ncclAllReduce", own, total, *counts(1), c_int(SUM), communicator, None)
say([unknown(gathered.value, 8), to_host(gathered.value + 8, 8)[0], unknown(total.value, 8)])
"""
    assert world(tmp_path, 2, script) == [[8, 7, 8]] * 2


def test_above_the_copy_limit_no_data_passes_and_no_rank_waits(tmp_path: Path) -> None:
    script = """
data = tensor("4q", 1, 2, 3, 4)
begun = time.monotonic()
if RANK == 0: call("ncclAllReduce", data, data, *counts(4), c_int(SUM), communicator, None)
say([unknown(data.value, 32), time.monotonic() - begun < 5])
"""
    assert world(tmp_path, 2, script, copy_limit=16)[0] == [32, True]


@pytest.mark.parametrize("is_grouped", [False, True])
def test_ranks_that_send_to_each_other_before_they_receive(tmp_path: Path, is_grouped: bool) -> None:
    script = f"""
peer = 1 - RANK
own, other = tensor("2q", RANK, 5), tensor("2q", -1, -1)
if {is_grouped}:
    call("ncclGroupStart")
    receive(other, 2, peer), send(own, 2, peer)
    call("ncclGroupEnd")
else:
    send(own, 2, peer), receive(other, 2, peer)
say(read(other, "2q"))
"""
    assert world(tmp_path, 2, script) == [[1, 5], [0, 5]]


def test_calls_of_two_communicators_do_not_mix(tmp_path: Path) -> None:
    script = """
child, size, rank = c_void_p(), c_int(), c_int()
call("ncclCommSplit", communicator, c_int(RANK % 2), c_int(-RANK), byref(child), None)
call("ncclCommCount", child, byref(size)), call("ncclCommUserRank", child, byref(rank))
inner, outer = tensor("q", RANK), tensor("q", RANK)
call("ncclAllReduce", inner, inner, *counts(1), c_int(SUM), child, None)
call("ncclAllReduce", outer, outer, *counts(1), c_int(SUM), communicator, None)
say([size.value, rank.value, read(inner, "q"), read(outer, "q")])
"""
    said = world(tmp_path, 4, script)
    assert said == [[2, 1, [2], [6]], [2, 1, [4], [6]], [2, 0, [2], [6]], [2, 0, [4], [6]]]


def test_a_rank_that_left_orderly_has_sent_what_it_sent(tmp_path: Path) -> None:
    script = """
data = tensor("q", RANK)
if RANK == 0:
    send(data, 1, 1)
    call("ncclCommDestroy", communicator)
    say(0)
else:
    time.sleep(0.5)
    say([receive(data, 1, 0), read(data, "q"), receive(data, 1, 0)])
"""
    assert world(tmp_path, 2, script) == [0, [0, [0], 6]]


def test_a_call_that_waits_for_a_killed_rank_fails(tmp_path: Path) -> None:
    script = """
data = tensor("q", RANK)
call("ncclAllReduce", data, data, *counts(1), c_int(SUM), communicator, None)
if RANK == 1:
    say(0)
    if os.fork() == 0:  # a child does not keep its parent's place
        os.closerange(1, 3)
        time.sleep(8)
    os._exit(0)
begun = time.monotonic()
answer = status("ncclAllReduce", data, data, *counts(1), c_int(SUM), communicator, None)
function = card.ncclGetLastError
function.restype = ctypes.c_char_p
say([answer, function(communicator).decode(), time.monotonic() - begun < 5])
"""
    assert world(tmp_path, 2, script)[0] == [6, "rank 1 has ended, or destroyed its communicator", True]
