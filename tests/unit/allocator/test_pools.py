"""Private pools: each has its own blocks, and keeps what it has cached for as long as it is in use."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from oomscope.allocator import AllocatorSettings, Driver, Held, ReplayOp, ReplayOutcome, replay
from oomscope.units import GiB, MiB

GRAPH, OTHER = 1, 2


class Op(NamedTuple):
    """One operation of a replay."""

    kind: ReplayOp
    name: int = 0
    size: int = 0
    pool: int = 0
    stream: int = 0


def malloc(name: int, mib: int, pool: int = 0, stream: int = 0) -> Op:
    return Op(ReplayOp.MALLOC, name, mib * MiB, pool, stream)


def free(name: int) -> Op:
    return Op(ReplayOp.FREE, name)


def play(ops, total: int = GiB, conf: str = "", settings: AllocatorSettings | None = None, **options) -> ReplayOutcome:
    columns = [list(column) for column in zip(*ops, strict=True)]
    kinds, ids, sizes, pools, streams = columns
    settings = settings or AllocatorSettings.parse(conf)
    return replay(kinds, ids, sizes, streams, settings=settings, driver=Driver(total), pools=pools, **options)


def actions(outcome: ReplayOutcome) -> list[tuple[str, int, int]]:
    return [(event.action, event.size // MiB, event.pool) for event in outcome.events]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize(("first", "second"), [(0, GRAPH), (GRAPH, 0), (GRAPH, OTHER)])
def test_a_request_is_served_by_cached_blocks_of_its_own_pool_only(first, second, conf):
    outcome = play([malloc(0, 40, first), free(0), malloc(1, 40, second), malloc(2, 40, first)], conf=conf)
    once, elsewhere, again = (outcome.addresses[index] for index in (0, 2, 3))
    assert once == again != elsewhere
    assert {segment.pool: segment.total_size for segment in outcome.allocator.segments()} == {
        first: 40 * MiB,
        second: 40 * MiB,
    }


def test_a_retry_leaves_the_segments_of_a_pool_in_use():
    ops = [malloc(0, 400, GRAPH), free(0), malloc(1, 400), free(1), malloc(2, 500)]
    outcome = play(ops)
    assert not outcome.failed.any()
    assert ("segment_free", 400, 0) in actions(outcome)
    assert ("segment_free", 400, GRAPH) not in actions(outcome)
    assert play([*ops, malloc(3, 400)]).failed.tolist()[-1]


def test_a_retry_releases_the_segments_of_a_pool_that_nothing_uses():
    ops = [malloc(0, 700, GRAPH), free(0), Op(ReplayOp.RELEASE_POOL, pool=GRAPH), malloc(1, 700)]
    outcome = play(ops)
    assert actions(outcome) == [("segment_alloc", 700, GRAPH), ("segment_free", 700, GRAPH), ("segment_alloc", 700, 0)]
    assert outcome.allocator.num_alloc_retries == 1


def test_a_pool_is_in_use_again_once_something_is_allocated_in_it():
    ops = [malloc(0, 700, GRAPH), free(0), Op(ReplayOp.RELEASE_POOL, pool=GRAPH), malloc(1, 10, GRAPH), free(1)]
    assert play([*ops, malloc(2, 700)]).failed.tolist()[-1]


CAPTURING = 7
"""A stream on which a graph is captured."""


@pytest.mark.parametrize(("stream", "version"), [(CAPTURING, "2.15"), (0, "2.12")])
def test_a_request_during_a_capture_releases_nothing_of_other_pools(stream, version):
    settings = AllocatorSettings.parse("", torch_version=version)
    outcome = play([malloc(0, 700), free(0), malloc(1, 700, GRAPH, stream)], settings=settings)
    assert outcome.failed.tolist()[-1]
    assert [event.action for event in outcome.events] == ["segment_alloc", "oom"]
    assert outcome.events[-1].pool == GRAPH
    assert outcome.allocator.num_alloc_retries == 0


def test_a_request_in_a_mem_pool_gives_back_what_the_default_pool_caches():
    """As the allocators of torch 2.14 and 2.15 do on the virtual card, and those of 2.11 and 2.12 do not."""
    outcome = play([malloc(0, 700), free(0), malloc(1, 700, OTHER)])
    assert not outcome.failed.any()
    assert actions(outcome) == [("segment_alloc", 700, 0), ("segment_free", 700, 0), ("segment_alloc", 700, OTHER)]
    assert outcome.allocator.num_alloc_retries == 1


def test_a_request_releases_oversize_blocks_of_its_own_pool():
    big = [malloc(0, 300, GRAPH, CAPTURING), malloc(1, 300), free(0), free(1)]
    ops = [*big, malloc(2, 600, GRAPH, CAPTURING)]
    outcome = play(ops, total=1000 * MiB, conf="max_split_size_mb:200")
    assert ("segment_free", 300, GRAPH) in actions(outcome)
    assert ("segment_free", 300, 0) not in actions(outcome)


@pytest.mark.parametrize(("kind", "kept"), [(ReplayOp.EMPTY_POOL, {0, OTHER}), (ReplayOp.EMPTY_CACHE, {OTHER})])
def test_what_is_cached_of_a_pool_can_be_given_back(kind, kept):
    cached = [op for name, pool in enumerate((0, GRAPH, OTHER)) for op in (malloc(name, 20, pool), free(name))]
    outcome = play([*cached, Op(ReplayOp.RELEASE_POOL, pool=GRAPH), Op(kind, pool=GRAPH)])
    assert {segment.pool for segment in outcome.allocator.segments()} == kept


def test_garbage_is_collected_in_the_default_pool_only():
    conf = "garbage_collection_threshold:0.5"
    cached = [op for name, pool in enumerate((0, GRAPH)) for op in (malloc(name, 300, pool), free(name))]
    outcome = play([*cached, malloc(2, 310)], conf=conf, fraction=0.9)
    assert [event for event in actions(outcome) if event[0] == "segment_free"] == [("segment_free", 300, 0)]


def test_uses_on_the_stream_of_the_block_do_not_count_in_a_private_pool_either():
    uses = [Op(ReplayOp.RECORD_STREAM, 0, stream=7)]
    ops = [malloc(0, 40, GRAPH, stream=7), *uses, free(0), malloc(1, 40, GRAPH, stream=7)]
    outcome = play(ops, event_lag=None)
    assert outcome.addresses[0] == outcome.addresses[-1]
    ops = [malloc(0, 40, GRAPH, stream=5), *uses, free(0), malloc(1, 40, GRAPH, stream=5)]
    outcome = play(ops, event_lag=None)
    assert outcome.addresses[0] != outcome.addresses[-1]


def test_what_is_held_goes_back_to_its_pool():
    before = play([malloc(0, 40, GRAPH), malloc(1, 60, GRAPH), free(1), malloc(2, 60)])
    held = Held(
        segments=before.allocator.segments(),
        ids={int(before.addresses[0]): 0, int(before.addresses[3]): 2},
    )
    again = play([malloc(1, 60, GRAPH), free(0), malloc(3, 40), malloc(4, 40, GRAPH)], held=held)
    assert again.addresses[0] == before.addresses[1]
    assert again.addresses[3] == before.addresses[0]
    assert {event.pool for event in again.events} == {0}
