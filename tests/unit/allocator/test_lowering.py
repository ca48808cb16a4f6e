"""What a function does as machine code is what it does as Python; what has no lowering is refused by name."""

from __future__ import annotations

from ctypes import ArgumentError
from functools import cache
from types import FunctionType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.allocator.lowering.machine import loaded, machine_code
from oomscope.allocator.memory import Memory

FACTOR = 3
NUMBERS = st.integers(-(2**31), 2**31)


class Columns(NamedTuple):
    left: Memory
    right: Memory


@cache
def compiled(function: FunctionType):
    return loaded(machine_code(function), function)


def arithmetic(a: int, b: int, kind: int) -> int:
    if kind == 0:
        return a + b * FACTOR - ~a
    if kind == 1:
        return 0 if b == 0 else a // b
    if kind == 2:
        return 0 if b == 0 else a % b
    if kind == 3:
        return a // 512 + a % 512
    if kind == 4:
        return (a >> (b % 8)) + (a << 3)
    if kind == 5:
        return (a & b) - (a | b) + (a ^ b)
    return min(a, b) - max(a, -b)


@given(NUMBERS, NUMBERS, st.integers(0, 6))
def test_arithmetic_is_pythons_also_below_zero(a, b, kind):
    assert compiled(arithmetic)(a, b, kind) == arithmetic(a, b, kind)


def _chained(a: int, b: int) -> int:
    return 1 if a < b <= 5 else 2


def choices(a: int, b: int) -> int:
    first = a and b
    second = a or b or 7
    third = not a - b
    return first * 100 + second * 10 + third + ((a if a > 2 else -a) if a <= b and a != 4 else 2)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_conditions_are_the_operand_that_decides(a, b):
    assert compiled(choices)(a, b) == choices(a, b)


def _bump(m: Memory, place: int) -> int:
    m[place] += 1
    return m[place]


def order(m: Memory, a: int) -> int:
    """Count what is computed: nothing behind the operand that decides, and an index once."""
    if a > 0 and _bump(m, 0) > 0 and a > 1 and _bump(m, 1) > 0:
        m[2] += 1
    m[2 + _bump(m, 3) % 2] -= 5
    return len(m)


@pytest.mark.parametrize("a", [0, 1, 2])
def test_only_what_is_needed_is_computed_and_once(a):
    python, machine = [0] * 5, np.zeros(5, np.int64)
    assert compiled(order)(machine, a) == order(python, a)
    assert machine.tolist() == python


def _divided(a: int, b: int) -> tuple[int, int]:
    return a // b, a % b


def loops(columns: Columns, start: int, stop: int) -> int:
    total = 0
    for index in range(start, stop):
        whole, rest = _divided(columns.left[index], columns.right[index])
        if rest == 2:
            break
        total += whole * rest
        index = 1000
    for index in range(stop, start, -2):
        total = 2 * total + index
    for _ in range(3):
        while True:
            total -= 1
            if total % 5 == 0:
                break
    else_less = 0
    while else_less < total and total > 0:
        else_less = 2 * else_less + 1
    return total + else_less + len(columns.right)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), max_size=6))
def test_loops_end_where_pythons_do(pairs):
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    columns = Columns(*(np.array(each, np.int64) for each in (left, right)))
    assert compiled(loops)(columns, 0, len(pairs)) == loops(Columns(left, right), 0, len(pairs))


def nothing(m: Memory) -> None:
    m[0] = m[1] = FACTOR
    if m[0] == FACTOR:
        return
    m[0] = 9


def test_what_returns_nothing_returns_zero():
    m = np.zeros(2, np.int64)
    assert compiled(nothing)(m) == 0
    assert m.tolist() == [3, 3]


def _fraction(a: int) -> int:
    return a / 2


def _text(a: int) -> int:
    return "a" + a


def _slice(m: Memory) -> int:
    return m[1:2]


def _keyword(a: int) -> int:
    return _known(a=a)


def _known(a: int) -> int:
    return a


def _default(a: int, b: int = 1) -> int:
    return a + b


def _list(a: list) -> int:
    return a[0]


def _comprehension(a: int) -> int:
    return sum(a for _ in range(3))


def _else(a: int) -> int:
    while a > 0:
        a -= 1
    else:
        a = 5
    return a


def _step(a: int) -> int:
    for index in range(0, 9, a):
        a += index
    return a


def _unknown(a: int) -> int:
    return a + missing  # noqa: F821 - what is tested


def _raises(a: int) -> int:
    raise ValueError


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (_fraction, "a / 2"),
        (_text, "'a'"),
        (_slice, "m[1:2]"),
        (_keyword, "_known(a=a)"),
        (_default, "1"),
        (_list, "a: list"),
        (_comprehension, "sum("),
        (_else, "while a > 0"),
        (_step, "range(0, 9, a)"),
        (_unknown, "missing"),
        (_raises, "raise ValueError"),
        (_chained, "a < b <= 5"),
    ],
)
def test_what_has_no_lowering_is_refused_by_name(function, what):
    with pytest.raises(SyntaxError) as error:
        machine_code(function)
    assert what in str(error.value)
    assert f"{function.__module__}.{function.__qualname__} cannot be compiled" in str(error.value)


def test_arrays_of_other_numbers_are_refused():
    with pytest.raises(ArgumentError, match="int64"):
        compiled(nothing)(np.zeros(2, np.int32))
    with pytest.raises(ArgumentError, match="C_CONTIGUOUS"):
        compiled(nothing)(np.zeros((4,), np.int64)[::2])
