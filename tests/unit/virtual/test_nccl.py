"""NCCL in a world of one process: collectives answer as if every rank held what this one holds."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tests.unit.virtual.on_card import on_card

CALLS = """
RANKS = 4
communicator = joined(RANKS, 2)

def reduced(form, type, operation, *values):
    pointer = tensor(form, *values)
    call("ncclAllReduce", pointer, pointer, c_size_t(len(values)), c_int(type), c_int(operation), communicator, None)
    return read(pointer, form)
"""


def said(script: str, **settings: object) -> Any:
    return on_card(CALLS + textwrap.dedent(script), preamble="nccl", **settings)


@pytest.mark.parametrize(
    ("form", "type_", "operation", "values", "result"),
    [
        ("3q", "INT64", "SUM", (1, -5, 2**62), [4, -20, 0]),
        ("3q", "INT64", "AVG", (1, -5, 7), [1, -5, 7]),
        ("2i", "INT32", "PRODUCT", (3, -2), [81, 16]),
        ("2i", "INT32", "MAX", (3, -2), [3, -2]),
        ("2f", "FLOAT", "SUM", (1.5, -0.25), [6.0, -1.0]),
        ("2f", "FLOAT", "MIN", (1.5, -0.25), [1.5, -0.25]),
        ("2d", "DOUBLE", "SUM", (1e300, 0.1), [4e300, 0.4]),
        ("4e", "HALF", "SUM", (1.5, 2049 / 4, 40000.0, 2**-24), [6.0, 2048.0, float("inf"), 2**-22]),
        ("2H", "BF16", "SUM", (0x3FC0, 0x3F81), [0x40C0, 0x4081]),
    ],
)
def test_a_reduction_of_held_values(form: str, type_: str, operation: str, values: Any, result: Any) -> None:
    assert said(f"say(reduced({form!r}, {type_}, {operation}, *{values!r}))") == result


@pytest.mark.parametrize(("type_", "operation"), [("FP8", "SUM"), ("FLOAT", "OWN")])
def test_a_reduction_that_is_not_computed_is_unknown(type_: str, operation: str) -> None:
    width = 1 if type_ == "FP8" else 4
    script = f"""
    data = tensor("8s", b"abcdefgh")
    call("ncclAllReduce", data, data, c_size_t({8 // width}), c_int({type_}), c_int({operation}), communicator, None)
    say(unknown(data.value, 8))
    """
    assert said(script) == 8


def test_unknown_stays_unknown_and_an_element_that_is_held_in_part_becomes_it() -> None:
    script = """
    data = c_void_p(malloc(16))
    to_device(data.value, struct.pack("qi", 5, 7))
    call("ncclAllReduce", data, data, c_size_t(2), c_int(INT64), c_int(SUM), communicator, None)
    say([unknown(data.value, 8), unknown(data.value + 8, 8), to_host(data.value, 8)[0]])
    """
    assert said(script) == [0, 8, 20]


def test_data_that_pass_between_ranks() -> None:
    script = """
    one, many = tensor("q", 11), tensor("4q", 10, 11, 12, 13)
    gathered, exchanged, scattered, from_other = (tensor("4q", 0, 0, 0, 0) for _ in range(4))
    call("ncclAllGather", one, gathered, c_size_t(1), c_int(INT64), communicator, None)
    call("ncclAlltoAll", many, exchanged, c_size_t(1), c_int(INT64), communicator, None)
    call("ncclReduceScatter", many, scattered, c_size_t(1), c_int(INT64), c_int(SUM), communicator, None)
    call("ncclBroadcast", one, from_other, c_size_t(1), c_int(INT64), c_int(0), communicator, None)
    received = tensor("q", 1)
    call("ncclSend", one, c_size_t(1), c_int(INT64), c_int(3), communicator, None)
    call("ncclRecv", received, c_size_t(1), c_int(INT64), c_int(1), communicator, None)
    say([read(gathered, "4q"), read(exchanged, "4q"), read(scattered, "q"), read(from_other, "q"), read(received, "q")])
    """
    assert said(script) == [[11] * 4, [12] * 4, [48], [0], "8 bytes unknown"]


def test_a_group_of_sends_and_receives_is_an_all_to_all() -> None:
    script = """
    source, target = tensor("4q", 10, 11, 12, 13), tensor("4q", 0, 0, 0, 0)
    call("ncclGroupStart")
    for rank in range(RANKS): call("ncclSend", c_void_p(source.value + 8 * rank), c_size_t(1), c_int(INT64), c_int(rank), communicator, None)
    for rank in range(RANKS): call("ncclRecv", c_void_p(target.value + 8 * rank), c_size_t(1), c_int(INT64), c_int(rank), communicator, None)
    call("ncclGroupEnd")
    say(read(target, "4q"))
    """  # noqa: E501
    assert said(script) == [12] * 4


def test_a_group_of_broadcasts_from_each_rank_is_a_gather() -> None:
    script = """
    own, target = tensor("q", 7), tensor("4q", 0, 0, 0, 0)
    call("ncclGroupStart")
    for rank in range(RANKS): call("ncclBroadcast", own, c_void_p(target.value + 8 * rank), c_size_t(1), c_int(INT64), c_int(rank), communicator, None)
    call("ncclGroupEnd")
    say(read(target, "4q"))
    """  # noqa: E501
    assert said(script) == [7] * 4


def test_a_split_of_which_only_peers_know_the_size_is_refused_by_name() -> None:
    script = """
    child = c_void_p()
    answer = status("ncclCommSplit", communicator, c_int(1), c_int(0), byref(child), None)
    none = status("ncclCommSplit", communicator, c_int(-1), c_int(0), byref(child), None)
    say([answer, none, list(state().unsupported)])
    """
    assert said(script) == [5, 0, ["ncclCommSplit"]]


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_its_world_is_refused(rank: int) -> None:
    assert said(f"say(status('ncclCommInitRank', byref(communicator), c_int(4), Id(), c_int({rank})))") == 4
