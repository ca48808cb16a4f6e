"""Long traces at once: what goes in is checked, and the compiled engine does what the Python one does."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from oomscope.allocator import AllocatorSettings, Driver, ReplayOp, replay
from oomscope.allocator.compiled import is_compiled
from oomscope.allocator.replay import pays_compiled
from oomscope.errors import UsageError
from oomscope.units import GiB, MiB
from tests.caching_allocator import stats

DEFAULTS = AllocatorSettings.parse("")
ROOT = Path(__file__).resolve().parents[3]


def random_trace(length: int, seed: int, live: int = 300) -> tuple[list[int], list[int], list[int], list[int]]:
    """Random mallocs, frees, stream uses and the occasional emptying of the cache, with ids used again."""
    random = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    held: list[int] = []
    spare = list(range(live))
    while len(rows) < length:
        draw = random.random()
        if draw < 0.001:
            rows.append((ReplayOp.EMPTY_CACHE, 0, 0, 0))
        elif draw < 0.002:
            rows.append((ReplayOp.SYNCHRONIZE, 0, 0, int(random.integers(3))))
        elif draw < 0.05 and held:
            rows.append((ReplayOp.RECORD_STREAM, held[-1], 0, int(random.integers(3))))
        elif spare and (draw < 0.55 or not held):
            size = int(random.choice([random.integers(0, 4096), random.integers(1, MiB), random.integers(1, 30 * MiB)]))
            rows.append((ReplayOp.MALLOC, spare[-1], size, int(random.integers(3))))
            held.append(spare.pop())
        else:
            spare.append(held.pop(int(random.integers(len(held)))))
            rows.append((ReplayOp.FREE, spare[-1], 0, 0))
    kinds, ids, nbytes, streams = (list(column) for column in zip(*rows, strict=True))
    return kinds, ids, nbytes, streams


def in_pools(kinds: list[int], seed: int) -> tuple[list[int], list[int]]:
    """Return operations with private pools among them, and the pool of each."""
    random = np.random.default_rng(seed)
    pools = random.integers(0, 3, len(kinds)).tolist()
    kinds = list(kinds)
    for index in np.flatnonzero(random.random(len(kinds)) < 0.01).tolist():
        if kinds[index] in {ReplayOp.EMPTY_CACHE, ReplayOp.RECORD_STREAM, ReplayOp.SYNCHRONIZE}:
            kinds[index], pools[index] = int(random.choice([ReplayOp.RELEASE_POOL, ReplayOp.EMPTY_POOL])), 1
    return kinds, pools


def test_a_small_trace():
    outcome = replay(
        [ReplayOp.MALLOC, ReplayOp.MALLOC, ReplayOp.MALLOC, ReplayOp.FREE, ReplayOp.FREE, ReplayOp.MALLOC],
        [0, 1, 2, 0, 2, 0],
        [10 * MiB, 0, GiB, 0, 0, 10 * MiB],
        settings=DEFAULTS,
        driver=Driver(100 * MiB),
    )
    assert outcome.failed.tolist() == [False, False, True, False, False, False]
    assert outcome.sizes.tolist() == [10 * MiB, -1, -1, -1, -1, 10 * MiB]
    assert outcome.addresses[0] == outcome.addresses[5] > 0
    assert [(event.op, event.alloc_size) for event in outcome.events] == [(0, 0), (2, GiB)]
    assert [(event.op, event.action) for event in outcome.events] == [(0, "segment_alloc"), (2, "oom")]
    assert outcome.allocator.reserved_peak == 10 * MiB
    assert len(replay([], [], [], settings=DEFAULTS, driver=Driver(GiB)).sizes) == 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([9], [0], [1]), "unknown kind"),
        (([0], [-1], [1]), "allocation id"),
        (([0], [0], [-1]), "negative number of bytes"),
        (([0, 0], [0, 0], [1, 1]), "operation 1 allocates an id that is live"),
    ],
)
def test_ill_formed_traces(columns, words):
    with pytest.raises(UsageError, match=words):
        replay(*columns, settings=DEFAULTS, driver=Driver(GiB), compiled=False)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "roundup_power2_divisions:8"])
@pytest.mark.parametrize("nbytes", [2**60, 2**62, 2**63 - 1])
def test_no_device_holds_an_exbibyte(conf, nbytes):
    settings = AllocatorSettings.parse(conf)
    outcome = replay([0, 0], [0, 1], [512, nbytes], settings=settings, driver=Driver(GiB), compiled=False)
    assert outcome.failed.tolist() == [False, True]
    assert [event.action for event in outcome.events].count("oom") == 1


@pytest.mark.parametrize(
    ("operations", "on_disk", "expected"),
    [(1000, True, False), (100_000, False, False), (100_000, True, True), (250_000, False, True)],
)
def test_compiles_only_where_it_pays(monkeypatch, operations, on_disk, expected):
    monkeypatch.setattr("oomscope.allocator.compiled.is_compiled", lambda: on_disk)
    assert pays_compiled(operations) is expected


@pytest.mark.slow
def test_compiled_and_python_agree(monkeypatch, caplog):
    """The compiled engine is kept under build/, so that a checkout compiles it once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / "build" / "cache"))
    caplog.set_level(logging.ERROR)
    cases = [
        ("", "2.13", None, "bump"),
        ("", "2.11", 0.8, "firstfit"),
        ("expandable_segments:True", "2.12", None, "down"),
        ("garbage_collection_threshold:0.5,max_split_size_mb:24,roundup_power2_divisions:4", "2.13", 0.9, "bump"),
        ("expandable_segments:True,large_segment_size_mb:21", "2.13", 0.9, "firstfit"),
    ]
    for seed, (conf, version, fraction, policy) in enumerate(cases):
        trace, pools = random_trace(4000, seed), None
        if seed % 2:
            kinds, pools = in_pools(trace[0], seed)
            trace = (kinds, *trace[1:])
        outcomes = [
            replay(
                *trace,
                settings=AllocatorSettings.parse(conf, torch_version=version),
                driver=Driver(GiB, 100 * MiB, policy),
                fraction=fraction,
                event_lag=seed % 3 or None,
                compiled=compiled,
                pools=pools,
            )
            for compiled in (False, True)
        ]
        python, compiled = outcomes
        assert (python.addresses == compiled.addresses).all(), conf
        assert (python.sizes == compiled.sizes).all(), conf
        assert (python.failed == compiled.failed).all(), conf
        assert python.failed.any(), "the case should run out of memory somewhere"
        assert python.events == compiled.events, conf
        assert stats(python.allocator) == stats(compiled.allocator), conf
        assert python.allocator.segments() == compiled.allocator.segments(), conf
    assert is_compiled()


def test_thousands_of_streams_are_kept_apart():
    count = 3000
    kinds = [ReplayOp.MALLOC] * count + [ReplayOp.FREE] * count
    numbers = [*range(count), *range(count)]
    streams = [(7 * number) % count for number in range(count)] * 2
    outcome = replay(kinds, numbers, [MiB] * len(kinds), streams, settings=DEFAULTS, driver=Driver(100 * GiB))
    assert {segment.stream for segment in outcome.allocator.segments()} == set(range(count))
    assert stats(outcome.allocator)["allocated_bytes"]["all"]["current"] == 0


@pytest.mark.parametrize("synchronized", [[1], [2], [1, 2], [2, 1], [1, 1]])
def test_only_streams_that_were_synchronized_complete_frees(synchronized):
    rows = [(ReplayOp.MALLOC, 0, MiB, 0), (ReplayOp.RECORD_STREAM, 0, 0, 1), (ReplayOp.FREE, 0, 0, 0)]
    rows += [(ReplayOp.MALLOC, 1, MiB, 0), (ReplayOp.RECORD_STREAM, 1, 0, 2), (ReplayOp.FREE, 1, 0, 0)]
    rows += [(ReplayOp.SYNCHRONIZE, 0, 0, stream) for stream in synchronized]
    rows += [(ReplayOp.MALLOC, 2, MiB, 3), (ReplayOp.MALLOC, 3, MiB, 3)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    outcome = replay(*columns, settings=DEFAULTS, driver=Driver(GiB), event_lag=None)
    completed = [event.op for event in outcome.events if event.action == "free_completed"]
    assert completed == [len(rows) - 2] * len(set(synchronized))
    active = stats(outcome.allocator)["active_bytes"]["all"]["current"]
    assert active == 2 * MiB + MiB * (2 - len(set(synchronized)))
