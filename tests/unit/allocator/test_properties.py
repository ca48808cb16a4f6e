"""Whatever is asked of it: no overlap, no lost byte, counters equal to the sum of the blocks, the same twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from oomscope.allocator import AllocatorSettings, Driver, ReplayOp
from oomscope.units import KiB, MiB
from tests.caching_allocator import CachingAllocator, DeviceOutOfMemory, ShownReplay

CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "garbage_collection_threshold:0.5",
    "expandable_segments:True,large_segment_size_mb:21,garbage_collection_threshold:0.5,max_split_size_mb:32",
    "roundup_power2_divisions:[1:4,8:2,>:1],large_segment_size_mb:13",
]
SIZES = st.one_of(
    st.sampled_from([0, 1, 512, MiB, MiB + 1, 10 * MiB, 10 * MiB - 511]),
    st.integers(1, 64 * KiB),
    st.integers(1, 40 * MiB),
)
STREAMS = st.integers(0, 2)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, STREAMS, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0), st.just(0)),
        st.tuples(st.just("record"), st.integers(0, 10**6), STREAMS, st.just(0)),
        st.tuples(st.sampled_from(["empty", "sync"]), st.just(0), STREAMS, st.just(0)),
        st.tuples(st.sampled_from(["release", "clear"]), st.just(0), st.just(0), st.integers(1, 2)),
    ),
    min_size=20,
    max_size=150,
)
WORLDS = st.tuples(
    st.sampled_from(CONFS),
    st.sampled_from(["2.9", "2.12", "2.13"]),
    st.sampled_from(["bump", "down", "firstfit"]),
    st.sampled_from([None, 0.7]),
    st.sampled_from([0, 2, None]),
)


SECOND_POOL_FIRST = [
    *(("malloc", MiB, 0, 2), ("malloc", MiB, 0, 1), ("free", 0, 0, 0), ("free", 0, 0, 0)),
    *(("release", 0, 0, 1), ("release", 0, 0, 2), ("empty", 0, 0, 0)),
]
"""Of two pools that are released the order of their numbers counts, not that of their first use."""


@dataclass
class Run:
    """One allocator, what is live in it, and every placement it gave."""

    allocator: CachingAllocator
    live: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # id -> address, size, request
    placements: list[tuple[int, int]] = field(default_factory=list)
    batch: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    pool_of: dict[int, int] = field(default_factory=dict)  # address -> private pool

    def do(self, kind: str, number: int, stream: int, pool: int) -> None:
        if kind == "malloc":
            name = len(self.placements)
            self.batch.append((ReplayOp.MALLOC, name, number, stream, pool))
            try:
                address, size = self.allocator.malloc(number, stream, pool)
            except DeviceOutOfMemory:
                address, size = -1, -1
            if size > 0:
                self.live[name], self.pool_of[address] = (address, size, number), pool
            self.placements.append((address, size) if size else (-1, -1))
        elif kind in {"free", "record"} and self.live:
            name = list(self.live)[number % len(self.live)]
            address = self.live[name][0]
            if kind == "free":
                del self.live[name]
                self.allocator.free(address)
                self.batch.append((ReplayOp.FREE, name, 0, 0, 0))
            else:
                self.allocator.record_stream(address, stream)
                self.batch.append((ReplayOp.RECORD_STREAM, name, 0, stream, 0))
        elif kind == "empty":
            self.allocator.empty_cache()
            self.batch.append((ReplayOp.EMPTY_CACHE, 0, 0, 0, 0))
        elif kind == "sync":
            self.allocator.synchronize(stream)
            self.batch.append((ReplayOp.SYNCHRONIZE, 0, 0, stream, 0))
        elif kind == "release":
            self.allocator.release_pool(pool)
            self.batch.append((ReplayOp.RELEASE_POOL, 0, 0, 0, pool))
        elif kind == "clear":
            self.allocator.empty_pool(pool)
            self.batch.append((ReplayOp.EMPTY_POOL, 0, 0, 0, pool))


def start(world) -> tuple[AllocatorSettings, Driver, dict]:
    conf, version, policy, fraction, lag = world
    if version == "2.9":
        conf = ",".join(part for part in conf.split(",") if "large_segment" not in part)
    settings_ = AllocatorSettings.parse(conf, torch_version=version)
    return settings_, Driver(200 * MiB, 10 * MiB, policy), {"fraction": fraction, "event_lag": lag}


def run(world, ops) -> Run:
    settings_, driver, options = start(world)
    played = Run(CachingAllocator(settings_, driver, **options))
    for op in ops:
        played.do(*op)
    return played


def check(played: Run) -> None:
    allocator = played.allocator
    segments = allocator.segments()
    ranges = sorted((segment.address, segment.address + segment.total_size) for segment in segments)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    blocks = []
    for segment in segments:
        position = segment.address
        for block in segment.blocks:
            assert block.address == position
            assert block.size > 0
            if block.state == "active_allocated":
                assert played.pool_of[block.address] == segment.pool
            position += block.size
        assert position == segment.address + segment.total_size
        blocks += segment.blocks
    allocated = [block for block in blocks if block.state == "active_allocated"]
    active = [block for block in blocks if block.state != "inactive"]
    assert {(block.address, block.size, block.requested_size) for block in allocated} == set(played.live.values())
    assert sum(segment.total_size for segment in segments) == allocator.reserved_bytes
    assert sum(block.size for block in allocated) == allocator.allocated_bytes
    assert sum(block.size for block in active) == allocator.active_bytes
    stats = allocator.stats()
    assert sum(block.requested_size for block in active) == stats["requested_bytes"]["all"]["current"]
    assert stats["active"]["all"]["current"] == len(active)
    assert stats["segment"]["all"]["current"] == sum(not segment.is_expandable for segment in segments)
    split = [
        b for s in segments if not s.is_expandable and len(s.blocks) > 1 for b in s.blocks if b.state == "inactive"
    ]
    assert stats["inactive_split"]["all"]["current"] == len(split)
    assert stats["inactive_split_bytes"]["all"]["current"] == sum(block.size for block in split)
    for kind, counted in stats.items():
        if isinstance(counted, dict) and "all" in counted:
            for name in ("current", "allocated", "freed"):
                both = counted["small_pool"][name] + counted["large_pool"][name]
                assert counted["all"][name] == both, kind


@settings(max_examples=120, deadline=None)
@given(WORLDS, OPS)
def test_blocks_tile_their_segments_and_counters_add_up(world, ops):
    played = run(world, ops)
    check(played)
    for address, _, _ in played.live.values():
        played.allocator.free(address)
    played.live.clear()
    check(played)
    for pool in (1, 2):
        played.allocator.release_pool(pool)
    played.allocator.empty_cache()
    assert played.allocator.allocated_bytes == played.allocator.active_bytes == played.allocator.reserved_bytes == 0
    assert played.allocator.segments() == []
    stats = played.allocator.stats()
    assert stats["num_device_alloc"] >= stats["segment"]["all"]["allocated"]


@settings(max_examples=60, deadline=None)
@given(WORLDS, OPS)
@example(("", "2.9", "bump", None, 0), SECOND_POOL_FIRST)
def test_a_batch_does_what_the_same_calls_do(world, ops):
    played = run(world, ops)
    again = run(world, ops)
    assert again.placements == played.placements
    settings_, driver, options = start(world)
    replayed = ShownReplay(settings_, driver, ids=max(1, len(played.placements)), **options)
    columns = list(zip(*played.batch, strict=True)) or [()] * 5
    outcome = replayed.run(*columns)
    mallocs = [index for index, kind in enumerate(columns[0]) if kind == ReplayOp.MALLOC]
    placed = [(int(outcome.addresses[index]), int(outcome.sizes[index])) for index in mallocs]
    assert placed == played.placements
    assert replayed.stats() == played.allocator.stats()
    assert replayed.segments() == played.allocator.segments()
    assert int(outcome.failed.sum()) == played.allocator.stats()["num_ooms"]
    without_op = [(event.action, event.address, event.size, event.stream) for event in played.allocator.drain_events()]
    assert [(event.action, event.address, event.size, event.stream) for event in outcome.events] == without_op
