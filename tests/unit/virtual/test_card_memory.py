"""Memory of the virtual card: the budget, addresses, mapped memory, pools and host memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.conformance import card_captures
from tests.unit.virtual.on_card import on_card

MiB = 1 << 20
BASE, END = 0x200000000000, 0x500000000000
ON_A_CARD = Path(__file__).parents[3] / "fixtures/snapshots/cuda"


def test_the_budget_is_what_the_card_has_less_what_others_hold() -> None:
    said = on_card(
        """
        start = free_bytes()
        first = malloc(60 * MiB)
        try:
            malloc(31 * MiB)
        except Refused as error:
            refused = error.args
        left = free_bytes()
        last = malloc(30 * MiB)
        full = free_bytes()
        free(first)
        say([start, refused, left, full, free_bytes()])
        """,
        total=100 * MiB,
        used=10 * MiB,
    )
    assert said == [90 * MiB, ["cudaMalloc", 2], 30 * MiB, 0, 60 * MiB]


def test_a_card_that_gives_more_than_it_reports() -> None:
    said = on_card(
        """
        import pynvml
        pynvml.nvmlInit()
        def told():
            free, total, whole = c_size_t(), c_size_t(), c_size_t()
            properties = ctypes.create_string_buffer(1008)
            call("cudaMemGetInfo", byref(free), byref(total))
            call("cuDeviceTotalMem_v2", byref(whole), c_int(0))
            call("cudaGetDeviceProperties", properties, c_int(0))
            of_properties, = struct.unpack_from("Q", properties, 288)
            nvml = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
            sizes = free.value, total.value, whole.value, of_properties, nvml.free, nvml.total
            return [size // MiB for size in sizes]
        before, first, between, second = told(), malloc(60 * MiB), told(), malloc(800 * MiB)
        say([before, between, told(), status("cudaMalloc", byref(c_void_p()), c_size_t(131 * MiB))])
        """,
        total=100 * MiB,
        used=10 * MiB,
        budget=1000 * MiB,
    )
    assert said == [
        [90, 100, 100, 100, 90, 100],
        [30, 100, 100, 100, 30, 100],
        [0, 100, 100, 100, 0, 100],
        2,
    ]


def test_small_requests_share_pages_of_2_mib_and_large_ones_have_their_own() -> None:
    said = on_card(
        """
        def taken(size):
            before = state().used_bytes
            pointers.append(malloc(size))
            return state().used_bytes - before
        pointers = []
        sizes = [taken(size) for size in (1, 513, MiB, MiB, MiB + 1, 3 * MiB)]
        distances = [pointers[1] - pointers[0], pointers[2] - pointers[1], pointers[0] % (2 * MiB)]
        for pointer in pointers:
            free(pointer)
        say([sizes, distances, state().used_bytes])
        """
    )
    assert said == [[2 * MiB, 0, 0, 2 * MiB, 2 * MiB, 4 * MiB], [512, 1024, 0], 0]


def test_a_pointer_is_freed_once() -> None:
    said = on_card(
        """
        pointer = malloc(MiB)
        free(pointer)
        say([status("cudaFree", c_void_p(pointer)), status("cudaFree", c_void_p(12345)), status("cudaFree", None)])
        """
    )
    assert said == [1, 1, 0]


SEQUENCE = """
    pointers = [malloc(size * MiB) for size in (2, 20, 2)]
    free(pointers[1])
    pointers.append(malloc(20 * MiB))
    pointers.append(reserve(100 * MiB))
    pointers.append(malloc(2 * MiB))
    say(pointers)
    """


def test_ascending_addresses_are_never_used_twice() -> None:
    offsets = [address - BASE for address in on_card(SEQUENCE, addresses="ascending")]
    assert offsets == [0, 2 * MiB, 22 * MiB, 24 * MiB, 44 * MiB, 144 * MiB]


@pytest.mark.parametrize("name", ["growing-a/05", "comb-a/03", "random-large/04", "train-small/09"])
def test_spans_are_the_addresses_of_a_real_driver(name: str) -> None:
    """An H100's driver 580, from the second segment on; where the first one lies is the process's own."""
    (item,) = (each for each in card_captures.items(ON_A_CARD, "golden") if each["name"] == name)
    columns = zip(*(item["trace"][key] for key in ("action", "addr", "size")), strict=True)
    events = [event for event in columns if event[0] in ("segment_alloc", "segment_free")]
    addresses = on_card(
        f"""
        segments = {{}}
        addresses = []
        for action, address, size in {events}:
            if action == "segment_alloc":
                segments[address] = malloc(size)
                addresses.append(segments[address])
            else:
                free(segments.pop(address))
        say(addresses)
        """,
        total=1 << 40,
    )
    real = [address for action, address, _ in events if action == "segment_alloc"]
    assert len(real) > 40
    assert [each - addresses[0] for each in addresses] == [each - real[0] for each in real]


def test_spans_of_each_device_and_none_for_reservations() -> None:
    first, reserved, second, again, large = on_card(
        """
        addresses = [malloc(20 * MiB), reserve(2 * MiB)]
        call("cudaSetDevice", 1)
        addresses += [malloc(20 * MiB)]
        call("cudaSetDevice", 0)
        free(addresses[0])
        addresses += [malloc(20 * MiB), malloc(200 * MiB)]
        say(addresses)
        """,
        devices=2,
    )
    assert first == again == END - 24 * MiB
    assert reserved == BASE
    assert second == first - 512 * MiB
    assert large == END - 1024 * MiB - 224 * MiB


def test_what_a_context_holds_back_is_given_out_once_a_kernel_was_launched() -> None:
    before, after = on_card(
        """
        blocks = [torch.empty(100 * MiB, dtype=torch.uint8, device="cuda")]
        torch.ones(1, device="cuda")
        blocks.append(torch.empty(100 * MiB, dtype=torch.uint8, device="cuda"))
        say([block.data_ptr() for block in blocks])
        """,
        preamble="torch",
    )
    assert (before, after) == (END - 640 * MiB, END - 512 * MiB)


def test_scattered_addresses_repeat_from_run_to_run_and_do_not_overlap() -> None:
    first, second = (on_card(SEQUENCE, addresses="scattered") for _ in range(2))
    assert first == second
    assert first != sorted(first)
    assert first != sorted(first, reverse=True)
    assert all(BASE <= address < 0x500000000000 and address % (2 * MiB) == 0 for address in first)
    live = sorted(zip(first, (2, 0, 2, 20, 100, 2), strict=True))
    assert all(a + size * MiB <= b for (a, size), (b, _) in itertools.pairwise(live))


def test_mapped_memory_counts_where_it_is_created() -> None:
    said = on_card(
        """
        address = reserve(64 * MiB)
        unmapped = status("cudaMemset", c_void_p(address), c_int(0), c_size_t(512))
        used = [state().used_bytes]
        handle = create(2 * MiB)
        used.append(state().used_bytes)
        map_physical(address, 2 * MiB, handle)
        again = status("cuMemMap", c_uint64(address), c_size_t(2 * MiB), c_size_t(0), c_uint64(handle), c_uint64(0))
        call("cuMemRelease", c_uint64(handle))
        used.append(state().used_bytes)
        memset(address, 7, 512)
        content = to_host(address, 2).hex()
        busy = status("cuMemAddressFree", c_uint64(address), c_size_t(64 * MiB))
        call("cuMemUnmap", c_uint64(address), c_size_t(2 * MiB))
        used.append(state().used_bytes)
        call("cuMemAddressFree", c_uint64(address), c_size_t(64 * MiB))
        try:
            create(200 * MiB)
        except Refused as error:
            refused = error.args
        say([unmapped, used, again, content, busy, refused])
        """,
        total=100 * MiB,
    )
    assert said == [1, [0, 2 * MiB, 2 * MiB, 0], 1, "0707", 1, ["cuMemCreate", 2]]


def test_a_reservation_takes_the_address_that_is_asked_for_where_it_is_free() -> None:
    said = on_card(
        """
        def hinted(hint):
            address = c_uint64()
            call("cuMemAddressReserve", byref(address), c_size_t(4 * MiB), c_size_t(0), c_uint64(hint), c_uint64(0))
            return address.value
        say([hinted(0x300000000000), hinted(0x300000000000)])
        """
    )
    assert said == [0x300000000000, BASE]


def test_a_pool_keeps_what_was_freed_until_a_synchronisation() -> None:
    said = on_card(
        """
        pool, pointer, number = c_void_p(), c_void_p(), c_uint64()
        call("cudaDeviceGetDefaultMemPool", byref(pool), c_int(0))
        def attribute(which):
            call("cudaMemPoolGetAttribute", pool, c_int(which), byref(number))
            return number.value
        steps = []
        def note():
            steps.append([attribute(5), attribute(7), state().used_bytes])
        call("cudaMallocAsync", byref(pointer), c_size_t(10 * MiB), None)
        note()
        call("cudaFreeAsync", pointer, None)
        note()
        call("cudaStreamSynchronize", None)
        note()
        call("cudaMemPoolSetAttribute", pool, c_int(4), byref(c_uint64(64 * MiB)))
        call("cudaMallocAsync", byref(pointer), c_size_t(40 * MiB), None)
        call("cudaFreeAsync", pointer, None)
        call("cudaStreamSynchronize", None)
        note()
        call("cudaMemPoolTrimTo", pool, c_size_t(0))
        note()
        say([steps, attribute(8)])
        """
    )
    assert said == [
        [[32 * MiB, 10 * MiB, 32 * MiB], [32 * MiB, 0, 32 * MiB], [0, 0, 0], [64 * MiB, 0, 64 * MiB], [0, 0, 0]],
        40 * MiB,
    ]


def test_device_and_pinned_memory_cost_no_host_memory_until_they_are_written() -> None:
    said = on_card(
        """
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        pinned = c_void_p()
        before = resident()
        pointer = malloc(70 << 30)
        call("cudaHostAlloc", byref(pinned), c_size_t(100 << 30), c_uint(0))
        memset(pointer, 0, 70 << 30)
        on_device(pointer, pointer + (30 << 30), 30 << 30)
        to_device(pointer + (5 << 30), b"x" * 4096)
        say([resident() - before, status("cudaFreeHost", pinned)])
        """
    )
    grown, freed = said
    assert grown < MiB
    assert freed == 0


def test_registered_and_managed_memory_takes_none_of_the_card() -> None:
    said = on_card(
        """
        area = ctypes.create_string_buffer(8192)
        call("cudaHostRegister", area, c_size_t(8192), c_uint(0))
        twice = status("cudaHostRegister", area, c_size_t(8192), c_uint(0))
        call("cudaHostUnregister", area)
        again = status("cudaHostUnregister", area)
        managed = c_void_p()
        call("cudaMallocManaged", byref(managed), c_size_t(MiB), c_uint(1))
        ctypes.memset(managed, 5, MiB)
        used = state().used_bytes
        call("cudaFree", managed)
        say([twice, again, used])
        """
    )
    assert said == [712, 713, 0]


@pytest.mark.parametrize(("what", "type_", "device"), [("device", 2, 0), ("pinned", 1, 0), ("host", 0, -2)])
def test_a_pointer_has_the_attributes_of_its_target(what: str, type_: int, device: int) -> None:
    said = on_card(
        f"""
        pinned = c_void_p()
        call("cudaHostAlloc", byref(pinned), c_size_t(4096), c_uint(0))
        pointers = {{"device": malloc(4096) + 100, "pinned": pinned.value + 100, "host": id(pinned)}}
        answer = (c_int * 32)()
        call("cudaPointerGetAttributes", answer, c_void_p(pointers[{what!r}]))
        say(list(answer[:2]))
        """
    )
    assert said == [type_, device]


def test_sharing_between_processes_is_refused_by_name() -> None:
    said = on_card(
        """
        pointer = malloc(MiB)
        handle = ctypes.create_string_buffer(64)
        refused = status("cudaIpcGetMemHandle", handle, c_void_p(pointer))
        say([refused, state().unsupported])
        """
    )
    assert said == [801, ["cudaIpcGetMemHandle"]]
