"""What stays on the device is what Megatron-Core's own manager leaves there, for any schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.schema import Config
from oomscope.model.memory.offload import SavedGroup, resident_groups
from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule
from oomscope.model.parallel.schedules import PassOrder, one_forward_one_backward, pass_order

ONE_PASS = PassOrder(chunks=(0,), backward=(0,), warmup=0)


def schedule(p: int, m: int, v: int) -> Config:
    virtual = {"virtual_pipeline_model_parallel_size": v} if v > 1 else {}
    return Config.model_validate(
        {
            "model": {"num_layers": p * v, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000},
            "parallel": {"pipeline_model_parallel_size": p, **virtual},
            "data": {"seq_length": 16, "num_microbatches": m},
        }
    )


def staying(names: str, passes: int, order: PassOrder, fraction: float) -> list[str]:
    """Return the numbers of the groups of each pass that stay; every group has bytes, and the name of a letter."""
    groups = [SavedGroup(name, 1) for name in names]
    return ["".join(map(str, sorted(stay))) for stay in resident_groups([groups] * passes, order, fraction)]


@pytest.mark.parametrize(
    ("p", "rank", "m", "v", "names", "fraction", "expected"),
    [
        (1, 0, 3, 1, "ababab", 1.0, ["45", "45", "45"]),
        (4, 0, 5, 1, "abab", 1.0, ["23", "", "", "", ""]),
        (4, 3, 5, 1, "abab", 1.0, ["23", "23", "23", "23", "23"]),
        (4, 2, 5, 1, "ababab", 0.5, ["2345", "345", "345", "345", "345"]),
        (2, 0, 4, 2, "abab", 1.0, ["", "", "23", "", "", "", "", ""]),
        (2, 1, 4, 2, "abab", 1.0, ["", "", "23", "23", "", "", "23", "23"]),
        (2, 1, 4, 2, "aaaaaa", 0.9, ["", "", "5", "5", "", "", "5", "5"]),
    ],
)
def test_groups_stay_as_the_manager_of_megatron_core_has_it(p, rank, m, v, names, fraction, expected) -> None:
    """Recorded from upstream's ``PipelineOffloadManager``, driven by these schedules with groups of a byte each."""
    order = pass_order(schedule(p, m, v), rank)
    assert staying(names, len(order.chunks), order, fraction) == expected


@pytest.mark.parametrize(("groups", "fraction", "kept"), [(11, 0.9, 0), (6, 0.8, 0), (6, 0.5, 2), (6, 0.0, 5)])
def test_a_fraction_rounds_as_upstream_does_in_floating_point(groups: int, fraction: float, kept: int) -> None:
    """``int(10 * (1 - 0.9))`` is 0; the last group of the name stays besides."""
    (resident,) = resident_groups([[SavedGroup("a", 1)] * groups], ONE_PASS, fraction)
    assert resident == set(range(groups - 1 - kept, groups))


def test_groups_without_bytes_are_not_counted() -> None:
    """Of four groups that could go two have bytes: half of them is one."""
    groups = [SavedGroup("a", nbytes) for nbytes in (1, 0, 1, 0, 1)]
    assert resident_groups([groups], ONE_PASS, 0.5) == [{2, 4}]


def test_a_name_that_another_chunk_reads_first_is_not_spared_twice() -> None:
    """Chunk 1 is differentiated first; what only chunk 0 has is spared there, up to as many names as a pass has."""
    order = PassOrder(chunks=(0, 1), backward=(1, 0), warmup=1)
    dense, experts = [SavedGroup("a", 1)], [SavedGroup("a", 1), SavedGroup("b", 1)]
    assert resident_groups([dense, experts], order, 1.0) == [set(), {0, 1}]
    assert resident_groups([experts, dense], order, 1.0) == [{1}, {0}]


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_order_is_that_of_the_schedule(p: int, v: int, groups: int, data: st.DataObject) -> None:
    v = v if p > 1 else 1
    rank, m = data.draw(st.integers(0, p - 1)), p * groups
    order = pass_order(schedule(p, m, v), rank)
    actions = list(one_forward_one_backward(p, rank, m) if v == 1 else InterleavedSchedule(p, rank, m, v, p).actions())
    forwards = [(action.microbatch, action.chunk) for action in actions if action.direction == "forward"]
    backwards = [(action.microbatch, action.chunk) for action in actions if action.direction == "backward"]
    assert order.chunks == tuple(chunk for _, chunk in forwards)
    assert [forwards[number] for number in order.backward] == backwards
    for number, forward in enumerate(forwards):
        before = actions[
            : [a.direction == "forward" and (a.microbatch, a.chunk) == forward for a in actions].index(True)
        ]
        assert order.differentiated_before(number) == sum(action.direction == "backward" for action in before)
