"""The sorted sets behave like a sorted list of (rank, tie, address), however they are filled and emptied."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.allocator.constants import ADDRESS, NONE, SET_ROW, TIE, TOP
from oomscope.allocator.memory import empty_memory, take, take_block_row
from oomscope.allocator.sortedset import after, ahead, at, find, first, insert, last, lower_bound, remove

RANKS = st.integers(0, 40)


def fresh(room: int = 200_000) -> tuple[list[int], int]:
    m = empty_memory()
    m.extend([0] * room)
    return m, take(m, SET_ROW)


def new_block(m: list[int], tie: int, address: int) -> int:
    block = take_block_row(m)
    m[block + TIE] = tie
    m[block + ADDRESS] = address
    return block


def contents(m: list[int], of: int) -> list[int]:
    blocks = []
    position = first(m, of)
    while position != NONE:
        blocks.append(at(m, of, position))
        position = after(m, of, position)
    return blocks


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(RANKS, st.integers(0, 2), st.integers(0, 10**6)), max_size=400, unique_by=lambda key: key[2]),
    st.randoms(use_true_random=False),
)
def test_agrees_with_a_sorted_list(keys, random):
    m, of = fresh()
    model: list[tuple[int, int, int, int]] = []
    for rank, tie, address in keys:
        block = new_block(m, tie, address)
        insert(m, of, rank, block)
        model.append((rank, tie, address, block))
        if len(model) > 3 and random.random() < 0.3:
            gone = model.pop(random.randrange(len(model)))
            remove(m, of, gone[0], gone[3])
    model.sort()
    assert contents(m, of) == [block for *_, block in model]
    for wanted in range(42):
        position = lower_bound(m, of, wanted)
        expected = next((block for rank, _, _, block in model if rank >= wanted), None)
        assert (None if position == NONE else at(m, of, position)) == expected
    for rank, _, _, block in model:
        assert at(m, of, find(m, of, rank, block)) == block


def test_walks_backwards_and_empties():
    m, of = fresh()
    blocks = [new_block(m, 0, address) for address in range(1000)]
    for block in blocks:
        insert(m, of, 7, block)
    position = last(m, of)
    seen = []
    while position != NONE:
        seen.append(at(m, of, position))
        position = ahead(m, of, position)
    assert seen == blocks[::-1]
    for block in blocks:
        remove(m, of, 7, block)
    assert (first(m, of), last(m, of), lower_bound(m, of, 0)) == (NONE, NONE, NONE)


def test_memory_is_used_again():
    m, of = fresh()
    blocks = [new_block(m, 0, address) for address in range(500)]
    tops = []
    for _ in range(4):
        for block in blocks:
            insert(m, of, 1, block)
        for block in reversed(blocks):
            remove(m, of, 1, block)
        tops.append(m[TOP])
    assert tops == [tops[0]] * 4
