"""Which pool a block is of, told by the events or else by the segments at the end, and what a replay makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.snapshot.accounting.lifetimes import BEFORE
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.pools import Pools, pools_of
from oomscope.snapshot.replay.recording import recording_of
from oomscope.snapshot.replay.replay import Device, replay
from oomscope.snapshot.replay.requests import Kind, requests_of
from oomscope.snapshot.replay.segment_map import part_of
from oomscope.snapshot.trace import Action, Block, Snapshot
from oomscope.units import GiB, MiB
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.cases import verdict_on
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.strategies import segment

GRAPH, OTHER = 1, 2
EXPANDABLE = "expandable_segments:True"


def timeline_of(machine: Machine, since: int = 0) -> Timeline:
    return Timeline.of(part_of(machine.trace(), slice(since, None)), machine.segments())


def ids_of_blocks(pools: Pools, timeline: Timeline) -> dict[int, tuple[int, int]]:
    """Return the pool of each block by its size in MiB."""
    sizes = (timeline.lifetimes.size // MiB).tolist()
    return {size: pools.ids[number] for size, number in zip(sizes, pools.of_block.tolist(), strict=True)}


def two_pools(conf: str = "", *, names_pools: bool) -> Machine:
    """Blocks of 30 and 40 MiB in the default pool, of 50 and 60 MiB in a private one; the larger of each stay."""
    machine = Machine(GiB, conf, names_pools=names_pools)
    short = machine.alloc(30 * MiB), machine.alloc(50 * MiB, pool=GRAPH)
    machine.alloc(40 * MiB)
    machine.alloc(60 * MiB, pool=GRAPH)
    for address in short:
        machine.free(address)
    return machine


@pytest.mark.parametrize("names_pools", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("conf", ["", EXPANDABLE])
@pytest.mark.parametrize("since", [0, 2, 8])
def test_every_block_is_of_the_pool_that_it_was_made_in(conf, names_pools, since):
    machine = two_pools(conf, names_pools=names_pools)
    timeline = timeline_of(machine, since)
    pools = pools_of(timeline)
    assert ids_of_blocks(pools, timeline) == {30: (0, 0), 40: (0, 0), 50: (0, 1), 60: (0, 1)}
    assert pools.are_named == (names_pools and len(timeline.trace.pools) > 1)


@pytest.mark.parametrize(
    ("taken", "given_back"), [(Action.SEGMENT_ALLOC, Action.SEGMENT_FREE), (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)]
)
def test_an_address_given_back_is_no_longer_that_of_the_block_that_had_it(taken, given_back):
    """The driver gave one address twice: first for the default pool, then for a graph's."""
    builder = TraceBuilder()
    for size in (30 * MiB, 40 * MiB):
        if size == 40 * MiB:
            builder.event(Action.FREE_REQUESTED, 2**30, 30 * MiB)
            builder.event(Action.FREE_COMPLETED, 2**30, 30 * MiB)
            builder.event(given_back, 2**30, 40 * MiB)
        builder.event(taken, 2**30, 40 * MiB)
        builder.event(Action.ALLOC, 2**30, size)
    block = Block(address=2**30, size=40 * MiB, requested_size=40 * MiB, state="active_allocated")
    is_expandable = taken == Action.SEGMENT_MAP
    held = segment(40 * MiB, block, address=2**30, is_expandable=is_expandable, pool_id=(0, 1))
    timeline = Timeline.of(builder.build(), [held])
    pools = pools_of(timeline)
    assert ids_of_blocks(pools, timeline) == {30: (0, 0), 40: (0, 1)}
    assert [pools.ids[pools.of_event[event]] for event in (0, 4, 5)] == [(0, 0), (0, 0), (0, 1)]


def test_a_pool_that_gave_memory_back_was_given_up():
    """A MemPool that dies gives back its own segments; a reset graph's go with the next empty_cache."""
    machine = Machine(GiB)
    machine.free(machine.alloc(30 * MiB))
    for pool in (GRAPH, OTHER):
        machine.free(machine.alloc(40 * MiB, pool=pool))
    machine.drop_pool(GRAPH)
    machine.release_pool(OTHER)
    machine.alloc(MiB)
    machine.empty_cache()
    requests = requests_of(timeline_of(machine))
    of_pools = requests.kind >= Kind.RELEASE_POOL
    assert list(zip(requests.kind[of_pools].tolist(), requests.pool[of_pools].tolist(), strict=True)) == [
        (Kind.RELEASE_POOL, 1),
        (Kind.EMPTY_POOL, 1),
        (Kind.RELEASE_POOL, 2),
        (Kind.EMPTY_CACHE, 0),
    ]
    timeline = timeline_of(machine)
    snapshot = Snapshot(segments=machine.segments(), traces=(timeline.trace,))
    assert recording_of(snapshot, timeline, "2.13").fidelity.is_exact


def cached_in_a_pool(conf: str = "", *, names_pools: bool = True) -> Machine:
    """A captured graph keeps 600 MiB of a card of 1 GiB, of which nothing is live, and 500 MiB are asked for."""
    machine = Machine(GiB, conf, names_pools=names_pools)
    machine.alloc(100 * MiB)
    machine.free(machine.alloc(600 * MiB, pool=GRAPH))
    machine.alloc(500 * MiB)
    return machine


@pytest.mark.parametrize("names_pools", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("conf", ["", EXPANDABLE])
def test_no_setting_frees_what_a_private_pool_has_cached(conf, names_pools):
    verdict = verdict_on(cached_in_a_pool(conf, names_pools=names_pools))
    assert (verdict.kind, verdict.cured_by, verdict.uncured) == ("fragmentation", (), True)
    gaps = {gap.reason: gap.bytes for gap in verdict.gaps}
    assert gaps["private_pool" if names_pools else "unknown_pool"] == 600 * MiB
    assert not any(fix.survives for fix in verdict.tried)


def test_a_request_of_a_private_pool_is_not_cured_by_what_the_default_pool_has_cached():
    machine = Machine(GiB)
    machine.alloc(100 * MiB, pool=GRAPH)
    machine.free(machine.alloc(600 * MiB))
    machine.alloc(500 * MiB, stream=7, pool=GRAPH)
    verdict = verdict_on(machine)
    assert (verdict.kind, verdict.cured_by) == ("fragmentation", ())
    assert {gap.reason: gap.bytes for gap in verdict.gaps}["outside_pool"] == 600 * MiB


SIZES = st.one_of(st.integers(1, 40 * MiB), st.sampled_from([MiB, MiB + 1, 10 * MiB, 2 * MiB]))
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0), st.just(0)),
    ),
    min_size=4,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(OPS, st.sampled_from(["", EXPANDABLE]), st.booleans(), st.floats(0, 1))
def test_whatever_is_asked_in_whatever_pools_is_repeated_from_any_event_on(ops, conf, names_pools, share):
    machine = Machine(4 * GiB, conf, names_pools=names_pools)
    live = []
    for kind, number, stream, pool in ops:
        if kind == "alloc":
            live.append(machine.alloc(number, stream, pool=pool))
        elif live:
            machine.free(live.pop(number % len(live)))
    timeline = timeline_of(machine, int(share * len(machine.trace())))
    requests = requests_of(timeline, initial=recover(timeline, machine.allocator.settings))
    outcome = replay(requests, machine.allocator.settings, Device(total_bytes=4 * GiB), at_recorded_addresses=True)
    assert outcome.survives
    held = {(each.address, each.total_size, each.pool_id) for each in machine.segments()}
    if (timeline.lifetimes.born != BEFORE).all():
        assert {(each.address, each.total_size, each.pool_id) for each in outcome.segments} == held
    assert sum(each.total_size for each in outcome.segments) == sum(size for _, size, _ in held)
