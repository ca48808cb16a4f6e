"""A module that was renamed is one module."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.compare.changes import renamed

tables = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3), max_size=5)


def test_those_that_hold_the_same_are_one_and_then_the_last_of_either_side() -> None:
    before = {"blocks.ln1": 4, "blocks": 2, "blocks.mlp": 9, "head": 5}
    after = {"h": 2, "h.ln_1": 4, "h.mlp.act": 36, "head": 7}
    assert renamed(before, after) == {"blocks.ln1": "h.ln_1", "blocks": "h", "blocks.mlp": "h.mlp.act"}


def test_what_may_be_one_or_another_stays_apart() -> None:
    assert renamed({"q": 1, "k": 1, "v": 1}, {"qkv": 3}) == {}
    assert renamed({"a": 1}, {"a": 1, "b": 1}) == {}


@given(tables, tables)
def test_names_are_given_once_and_only_where_they_differ(before: dict[str, int], after: dict[str, int]) -> None:
    pairs = renamed(before, after)
    assert set(pairs) <= set(before) - set(after)
    assert len(set(pairs.values())) == len(pairs)
    assert set(pairs.values()) <= set(after) - set(before)
    assert renamed(after, before).keys() <= set(after) - set(before)
