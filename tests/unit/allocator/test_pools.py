"""Private pools: each has its own blocks, and keeps what it has cached for as long as it is in use."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.allocator import (
    AllocatorSettings,
    CachingAllocator,
    DeviceOutOfMemory,
    Driver,
    Held,
    Replay,
    ReplayOp,
    ReplayOutcome,
    replay,
)
from oomscope.errors import UsageError
from oomscope.units import GiB, MiB

from .test_properties import CONFS, SIZES, check

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


def play(ops, total: int = GiB, conf: str = "", **options) -> ReplayOutcome:
    columns = [list(column) for column in zip(*ops, strict=True)]
    kinds, ids, sizes, pools, streams = columns
    return replay(
        kinds, ids, sizes, streams, settings=AllocatorSettings.parse(conf), driver=Driver(total), pools=pools, **options
    )


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


def test_a_request_of_a_private_pool_releases_nothing_of_others():
    outcome = play([malloc(0, 700), free(0), malloc(1, 700, GRAPH)])
    assert outcome.failed.tolist()[-1]
    assert [event.action for event in outcome.events] == ["segment_alloc", "oom"]
    assert outcome.events[-1].pool == GRAPH
    assert outcome.allocator.num_alloc_retries == 0


def test_a_request_releases_oversize_blocks_of_its_own_pool():
    ops = [malloc(0, 300, GRAPH), malloc(1, 300), free(0), free(1), malloc(2, 600, GRAPH)]
    outcome = play(ops, total=1000 * MiB, conf="max_split_size_mb:200")
    assert ("segment_free", 300, GRAPH) in actions(outcome)
    assert ("segment_free", 300, 0) not in actions(outcome)


@pytest.mark.parametrize(("kind", "kept"), [(ReplayOp.EMPTY_POOL, {0, OTHER}), (ReplayOp.EMPTY_CACHE, {OTHER})])
def test_what_is_cached_of_a_pool_can_be_given_back(kind, kept):
    cached = [op for name, pool in enumerate((0, GRAPH, OTHER)) for op in (malloc(name, 20, pool), free(name))]
    outcome = play([*cached, Op(ReplayOp.RELEASE_POOL, pool=GRAPH), Op(kind, pool=GRAPH)])
    assert {segment.pool for segment in outcome.allocator.segments()} == kept


def test_a_pool_in_use_is_not_emptied():
    outcome = play([malloc(0, 20, GRAPH), free(0), Op(ReplayOp.EMPTY_POOL, pool=GRAPH)])
    assert [segment.pool for segment in outcome.allocator.segments()] == [GRAPH]


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


@pytest.mark.parametrize(
    ("pools", "said"),
    [([5], "private pool 5 was not announced"), ([0, 0], "came with 2 pools")],
)
def test_pools_that_are_unknown_are_refused(pools, said):
    allocator = Replay(AllocatorSettings(), Driver(GiB), ids=1, pool_streams=[(GRAPH, 0)])
    with pytest.raises(UsageError, match=said):
        allocator.run([ReplayOp.MALLOC], [0], [MiB], pools=pools)
    with pytest.raises(UsageError, match="names none"):
        allocator.run([ReplayOp.RELEASE_POOL], [0], [0])


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["release", "empty", "clear"]), st.just(0), st.just(0), st.integers(1, 2)),
    ),
    min_size=10,
    max_size=100,
)
WORLDS = st.tuples(st.sampled_from(CONFS[:4]), st.sampled_from(["2.11", "2.12", "2.13"]))


class Run:
    """The same requests made one by one, and as a batch."""

    def __init__(self, world, total: int) -> None:
        conf, version = world
        self.settings, self.driver = AllocatorSettings.parse(conf, torch_version=version), Driver(total)
        self.allocator = CachingAllocator(self.settings, self.driver, fraction=0.9)
        self.live: dict[int, tuple[int, int, int]] = {}
        self.batch: list[Op] = []
        self.pool_of: dict[int, int] = {}
        self.count = 0

    def do(self, kind: str, number: int, stream: int, pool: int) -> None:
        if kind == "malloc":
            self.batch.append(Op(ReplayOp.MALLOC, self.count, number, pool, stream))
            try:
                address, size = self.allocator.malloc(number, stream, pool)
            except DeviceOutOfMemory:
                size = 0
            if size:
                self.live[self.count] = address, size, number
                self.pool_of[address] = pool
            self.count += 1
        elif kind == "free" and self.live:
            name = list(self.live)[number % len(self.live)]
            self.batch.append(free(name))
            self.allocator.free(self.live.pop(name)[0])
        elif kind == "release":
            self.allocator.release_pool(pool)
            self.batch.append(Op(ReplayOp.RELEASE_POOL, pool=pool))
        elif kind == "clear":
            self.allocator.empty_pool(pool)
            self.batch.append(Op(ReplayOp.EMPTY_POOL, pool=pool))
        elif kind == "empty":
            self.allocator.empty_cache()
            self.batch.append(Op(ReplayOp.EMPTY_CACHE))


def run(world, ops, total: int = 200 * MiB) -> Run:
    played = Run(world, total)
    for op in ops:
        played.do(*op)
    return played


@settings(max_examples=60, deadline=None)
@given(WORLDS, OPS)
def test_pools_share_no_segment_and_counters_add_up(world, ops):
    played = run(world, ops)
    check(played)
    for segment in played.allocator.segments():
        for block in segment.blocks:
            if block.state == "active_allocated":
                assert played.pool_of[block.address] == segment.pool


@settings(max_examples=40, deadline=None)
@given(WORLDS, OPS)
def test_a_batch_does_what_the_same_calls_do(world, ops):
    played = run(world, ops)
    pairs = [(pool, stream) for pool in (1, 2) for stream in (0, 1)]
    known_ids = max(1, played.count)  # an operation that names no allocation has the id 0
    replayed = Replay(played.settings, played.driver, ids=known_ids, streams=[1], fraction=0.9, pool_streams=pairs)
    kinds, ids, sizes, pools, streams = zip(*played.batch, strict=True) if played.batch else ((), (), (), (), ())
    replayed.run(kinds, ids, sizes, streams, pools)
    assert replayed.stats() == played.allocator.stats()
    assert replayed.segments() == played.allocator.segments()


@settings(max_examples=60, deadline=None)
@given(WORLDS, OPS)
def test_with_room_for_all_each_pool_does_what_it_would_do_alone(world, ops):
    """A pool in use meets the others only where memory runs out, so that an allocator of its own tells what it does."""
    ops = [op for op in ops if op[0] in {"malloc", "free"}]
    together = run(world, ops, total=1 << 40)
    events = together.allocator.drain_events()
    for pool in range(3):
        alone = CachingAllocator(together.settings, together.driver, fraction=0.9)
        addresses = {}
        for op in together.batch:
            if op.kind == ReplayOp.MALLOC and op.pool == pool:
                addresses[op.name] = alone.malloc(op.size, op.stream).address
            elif op.kind == ReplayOp.FREE and op.name in addresses:
                alone.free(addresses.pop(op.name))
        own = [(event.action, event.size, event.stream, event.offset) for event in events if event.pool == pool]
        assert own == [(event.action, event.size, event.stream, event.offset) for event in alone.drain_events()]
