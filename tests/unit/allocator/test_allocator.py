"""What a caller of the allocator meets, and rules that no golden record of test_allocator_golden.py shows."""

from __future__ import annotations

import pytest

from oomscope.allocator import AllocatorSettings, Driver
from oomscope.allocator.engine.constants import MAX_DEVICE_BYTES
from oomscope.errors import OomscopeError
from oomscope.units import GiB, MiB
from tests.caching_allocator import CachingAllocator, DeviceOutOfMemory


def allocator(conf: str = "", total: int = GiB, version: str = "2.13", other: int = 0, **options) -> CachingAllocator:
    return CachingAllocator(AllocatorSettings.parse(conf, torch_version=version), Driver(total, other), **options)


def actions(device: CachingAllocator) -> list[tuple[str, int]]:
    return [(event.action, event.size) for event in device.drain_events()]


def test_nothing_is_allocated_for_no_bytes():
    device = allocator()
    assert device.malloc(0) == (0, 0)
    device.free(0)
    device.record_stream(0, 1)
    assert device.reserved_bytes == device.stats()["allocation"]["all"]["allocated"] == 0
    assert device.round_size(0) == 0


@pytest.mark.parametrize(("version", "winner"), [("2.11", "first"), ("2.12", "second"), ("2.13", "second")])
def test_ties_go_to_the_lower_address_or_the_older_segment(version, winner):
    device = CachingAllocator(AllocatorSettings.parse("", torch_version=version), Driver(GiB, policy="down"))
    second, first = device.malloc(10 * MiB), device.malloc(10 * MiB)
    assert first.address < second.address
    device.free(first.address)
    device.free(second.address)
    expected = first if winner == "first" else second
    assert device.malloc(10 * MiB).address == expected.address


def test_out_of_memory_says_what_torch_says_and_leaves_the_allocator_usable():
    device = allocator(total=64 * MiB, other=16 * MiB)
    kept = device.malloc(30 * MiB)
    with pytest.raises(DeviceOutOfMemory) as caught:
        device.malloc(9 * MiB + 1, stream=3)
    oom = caught.value
    assert (oom.requested, oom.rounded) == (9 * MiB + 1, 9 * MiB + 512)
    assert (oom.alloc_size, oom.device_free, oom.device_total) == (20 * MiB, 18 * MiB, 64 * MiB)
    assert (oom.allocated, oom.reserved, oom.allowed) == (30 * MiB, 30 * MiB, None)
    device.free(kept.address)
    assert device.malloc(30 * MiB).size == 30 * MiB


def test_the_fraction_limits_what_is_asked_of_the_driver():
    device = allocator(total=100 * MiB, fraction=0.25)
    assert device.limit_bytes == 25 * MiB
    with pytest.raises(DeviceOutOfMemory) as caught:
        device.malloc(26 * MiB)
    assert caught.value.allowed == 25 * MiB
    assert "25.00 MiB allowed" in str(caught.value)
    device.set_fraction(1.0)
    assert device.limit_bytes is None
    assert device.malloc(26 * MiB).size == 26 * MiB


@pytest.mark.parametrize(("version", "limit"), [("2.6", 200 * MiB), ("2.9", 200 * MiB), ("2.10", None), ("2.15", None)])
def test_up_to_2_9_a_fraction_of_one_is_a_limit_all_the_same(version, limit):
    """The device is as large, but garbage is collected from there on."""

    def freed(device: CachingAllocator) -> int:
        device.free(device.malloc(60 * MiB).address)
        for size in (64 * MiB, 65 * MiB):
            device.malloc(size)
        return device.stats()["segment"]["all"]["freed"]

    conf = "garbage_collection_threshold:0.5"
    at_start = allocator(conf, 200 * MiB, version, fraction=1.0)
    later = allocator(conf, 200 * MiB, version, fraction=0.5)
    later.set_fraction(1.0)
    never = allocator(conf, 200 * MiB, version)
    assert (at_start.limit_bytes, later.limit_bytes, never.limit_bytes) == (limit, limit, None)
    collected = 0 if limit is None else 1
    assert (freed(at_start), freed(later), freed(never)) == (collected, collected, 0)


def test_the_fraction_of_the_settings_counts_only_at_the_start():
    device = allocator("per_process_memory_fraction:0.5", total=100 * MiB)
    assert device.limit_bytes == 50 * MiB
    device.set_settings("per_process_memory_fraction:0.1")
    assert device.limit_bytes == 50 * MiB


def test_without_a_lag_only_a_synchronisation_completes_events():
    device = allocator(event_lag=None)
    for stream in (5, 6):
        block = device.malloc(10 * MiB)
        device.record_stream(block.address, stream)
        device.free(block.address)
    device.malloc(512)
    assert device.active_bytes == 20 * MiB + 512
    device.synchronize(5)
    device.malloc(512)
    assert device.active_bytes == 10 * MiB + 1024
    device.synchronize()
    device.malloc(512)
    assert device.active_bytes == 1536


def test_blocks_freed_by_the_wait_are_not_looked_at_again():
    """pytorch issue 189504: the same request succeeds when it is repeated."""
    device = allocator(total=40 * MiB, event_lag=None)
    pending, live = device.malloc(20 * MiB), device.malloc(20 * MiB)
    device.free(pending.address)
    front, back = device.malloc(10 * MiB), device.malloc(10 * MiB)
    device.record_stream(front.address, 1)
    device.free(front.address)
    with pytest.raises(DeviceOutOfMemory):
        device.malloc(10 * MiB)
    assert device.malloc(10 * MiB).address == front.address
    assert live.size + back.size == 30 * MiB


def test_expandable_segments_need_twenty_mebibytes_for_the_smallest_large_request():
    device = allocator("expandable_segments:True", total=38 * MiB)
    device.malloc(20 * MiB)
    with pytest.raises(DeviceOutOfMemory) as caught:
        device.malloc(2 * MiB)
    assert (caught.value.alloc_size, caught.value.device_free) == (20 * MiB, 18 * MiB)


@pytest.mark.parametrize(("version", "mapped", "next_range"), [("2.14", 240 * MiB, 0), ("2.15", 0, 2)])
def test_a_reservation_shorter_than_the_request_is_kept_up_to_2_14(version, mapped, next_range):
    """Seen with the compiled allocators of 2.11 and 2.15: twelve pages of 20 MiB are mapped and given back, or none.

    Each of both attempts makes a reservation of 300 MiB, 9/8 of the card in whole pages.
    """
    device = allocator("expandable_segments:True", 256 * MiB, version)
    with pytest.raises(DeviceOutOfMemory):
        device.malloc(301 * MiB)
    assert (device.device_peak, device.reserved_bytes, device.num_alloc_retries) == (mapped, 0, 1)
    assert actions(device) == [("oom", 301 * MiB)]
    device.malloc(30 * MiB)
    [event] = device.drain_events()
    assert (event.action, event.range, event.size) == ("segment_map", next_range, 40 * MiB)
    with pytest.raises(DeviceOutOfMemory):
        device.malloc(300 * MiB)
    assert device.device_peak == 240 * MiB, "what a reservation holds is mapped until memory runs out"


def test_a_split_oversize_block_is_left_alone():
    device = allocator(total=300 * MiB)
    device.free(device.malloc(200 * MiB).address)
    device.set_settings("expandable_segments:True,max_split_size_mb:300")
    kept = device.malloc(20 * MiB)
    device.set_settings("max_split_size_mb:100,expandable_segments:True")
    with pytest.raises(DeviceOutOfMemory):
        device.malloc(250 * MiB)
    device.free(kept.address)
    assert device.malloc(250 * MiB).size == 250 * MiB


def test_throwing_before_cudamalloc_releases_nothing():
    device = allocator("throw_on_cudamalloc_oom:True", total=100 * MiB)
    device.free(device.malloc(50 * MiB).address)
    actions(device)
    with pytest.raises(DeviceOutOfMemory):
        device.malloc(101 * MiB)
    assert actions(device) == []
    assert (device.num_alloc_retries, device.reserved_bytes) == (0, 50 * MiB)


def test_first_fit_uses_addresses_again():
    device = CachingAllocator(AllocatorSettings.parse(""), Driver(GiB, policy="firstfit"))
    low, kept = device.malloc(30 * MiB), device.malloc(30 * MiB)
    device.free(low.address)
    device.empty_cache()
    assert device.malloc(40 * MiB).address > kept.address
    assert device.malloc(26 * MiB).address == low.address


def test_recorded_addresses_are_handed_out_by_size():
    recorded = ((0x7F00_0000_0000, 10 * MiB), (0x7E00_0000_0000, 12 * MiB), (0x7D00_0000_0000, 10 * MiB))
    device = CachingAllocator(AllocatorSettings.parse(""), Driver(GiB, policy="recorded", addresses=recorded))
    sizes = (12 * MiB, 10 * MiB, 10 * MiB, 10 * MiB)
    addresses = [device.malloc(size).address for size in sizes]
    assert addresses[:3] == [0x7E00_0000_0000, 0x7F00_0000_0000, 0x7D00_0000_0000]
    assert addresses[3] >= 0x7F00_0000_0000 + 10 * MiB


@pytest.mark.parametrize(
    "misuse",
    [
        lambda device: device.malloc(-1),
        lambda device: device.free(0x1234),
        lambda device: device.record_stream(0x1234, 1),
        lambda device: device.set_fraction(-0.1),
        lambda device: device.set_settings("nonsense"),
        lambda device: [device.free(block) for block in [device.malloc(512).address] * 2],
        lambda device: Driver(0),
        lambda device: Driver(MAX_DEVICE_BYTES + 1),
        lambda device: Driver(GiB, -1),
        lambda device: Driver(GiB, policy="random"),
        lambda device: allocator(event_lag=-1),
        lambda device: allocator(fraction=-1.0),
    ],
)
def test_misuse_is_refused_in_one_line(misuse):
    with pytest.raises(OomscopeError) as caught:
        misuse(allocator())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_the_largest_device_is_ordered_rightly(conf):
    device = allocator(conf, total=MAX_DEVICE_BYTES)
    whole = device.malloc(MAX_DEVICE_BYTES - 20 * MiB)
    device.free(whole.address)
    assert device.malloc(2 * GiB).address == whole.address
