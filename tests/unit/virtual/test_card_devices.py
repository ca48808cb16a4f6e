"""What the virtual card says of itself: attributes, properties, NVML, entry points, errors."""

from __future__ import annotations

import pytest

from oomscope.virtual.cards import CARDS
from oomscope.virtual.settings import CardSettings
from tests.unit.virtual.on_card import on_card

MiB = 1 << 20


@pytest.mark.parametrize("key", CARDS)
def test_a_card_of_the_table_reports_its_figures(key: str) -> None:
    card = CARDS[key]
    said = on_card(
        """
        def attribute(number):
            value = c_int()
            call("cudaDeviceGetAttribute", byref(value), c_int(number), c_int(0))
            return value.value
        properties = ctypes.create_string_buffer(1008)
        call("cudaGetDeviceProperties", properties, c_int(0))
        total = struct.unpack_from("<Q", properties, 288)[0]
        say([properties.value.decode(), total, [attribute(n) for n in (16, 75, 76, 38, 37, 97, 81, 39, 106)]])
        """,
        environment=CardSettings(card=card).variables(),
    )
    limits = card.sm_limits
    figures = [card.multiprocessors, *card.capability, card.l2_bytes, card.bus_bits, limits.shared_bytes_per_block]
    assert said == [
        card.device_name,
        card.total_bytes,
        [*figures, limits.shared_bytes, limits.threads, limits.blocks],
    ]


def test_a_program_built_for_cuda_12_gets_what_it_knows_and_no_byte_more() -> None:
    """Offsets and sizes of CUDA 12's structs; behind them lies what belongs to the program."""
    card = CARDS["l40s"]
    said = on_card(
        """
        properties = ctypes.create_string_buffer(b"x" * 1040)
        call("cudaGetDeviceProperties_v2", properties, c_int(0))
        total, = struct.unpack_from("<Q", properties, 288)
        major, minor, multiprocessors = (struct.unpack_from("<i", properties, at)[0] for at in (360, 364, 388))
        pointer = ctypes.create_string_buffer(b"x" * 32)
        call("cudaPointerGetAttributes", pointer, c_void_p(malloc(4096)))
        behind = [properties.raw[1032:1040].decode(), pointer.raw[24:32].decode()]
        say([properties.value.decode(), total, major, minor, multiprocessors, behind])
        """,
        environment=CardSettings(card=card).variables(),
    )
    assert said == [card.device_name, card.total_bytes, *card.capability, card.multiprocessors, ["x" * 8] * 2]


def test_the_default_card_is_the_table_s() -> None:
    script = """
        total, name = c_size_t(), ctypes.create_string_buffer(200)
        call("cuDeviceTotalMem_v2", byref(total), c_int(0))
        call("cuDeviceGetName", name, c_int(200), c_int(0))
        values = (c_int * 160)()
        for number in range(1, 160):
            status("cudaDeviceGetAttribute", byref(values, 4 * number), c_int(number), c_int(0))
        say([total.value, name.value.decode(), list(values)])
        """
    assert on_card(script) == on_card(script, environment=CardSettings().variables())


def test_every_size_is_written_also_where_a_call_fails() -> None:
    said = on_card(
        """
        free, total, value = c_size_t(77), c_size_t(77), c_int(77)
        call("cudaFree", None)
        answers = [status("cudaDeviceGetAttribute", byref(value), c_int(9999), c_int(0)), value.value]
        value = c_int(77)
        answers += [status("cudaDeviceGetAttribute", byref(value), c_int(16), c_int(5)), value.value]
        pointer = c_void_p(77)
        answers += [status("cudaMalloc", byref(pointer), c_size_t(1 << 60)), pointer.value]
        say(answers)
        """
    )
    assert said == [1, 0, 101, 0, 2, None]


def test_nvml_reports_memory_and_processes_without_choosing_the_card() -> None:
    said = on_card(
        """
        import os
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(1)
        def memory():
            one = pynvml.nvmlDeviceGetMemoryInfo(handle)
            two = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            assert (one.total, one.free, one.used) == (two.total, two.free, two.used)
            return [one.total // MiB, one.free // MiB, one.used // MiB]
        before, entered = memory(), state().entered
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        malloc(30 * MiB)
        listed = [[one.pid == os.getpid(), one.usedGpuMemory // MiB]
                  for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        other = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        same = pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        try:
            pynvml.nvmlDeviceGetHandleByIndex(2)
        except pynvml.NVMLError_InvalidArgument:
            none = True
        say([before, entered, memory(), listed, other, same, none, pynvml.nvmlDeviceGetName(handle),
             list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)), pynvml.nvmlDeviceGetMigMode(handle)])
        """,
        total=100 * MiB,
        used=10 * MiB,
        devices=2,
        name="Some Card",
    )
    assert said == [
        [100, 90, 10], False, [100, 60, 40], [[True, 30]], [], 1, True, "Some Card", [9, 0], [0, 0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "version", "symbol"),
    [
        ("cuMemAlloc", 13000, "cuMemAlloc_v2"),
        ("cuMemCreate", 12000, "cuMemCreate"),
        ("cuStreamGetCaptureInfo", 12000, "cuStreamGetCaptureInfo_v2"),
        ("cuStreamGetCaptureInfo", 13000, "cuStreamGetCaptureInfo_v3"),
        ("cuStreamGetCtx", 12010, "cuStreamGetCtx"),
        ("cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"),
        ("cuCtxGetDevice", 12000, "cuCtxGetDevice"),
        ("cuMemAdvise", 12000, "cuMemAdvise"),
        ("cuMemAdvise", 13000, "cuMemAdvise_v2"),
        ("cuNothing", 13000, None),
    ],
)
def test_functions_of_the_driver_are_found_by_name(name: str, version: int, symbol: str | None) -> None:
    said = on_card(
        f"""
        found, query = c_void_p(77), c_int(77)
        name, version = {name.encode()!r}, {version}
        look_up = "cudaGetDriverEntryPointByVersion"
        call(look_up, name, byref(found), c_uint(version), c_uint64(0), byref(query))
        direct = status("cuGetProcAddress_v2", name, byref(c_void_p()), c_int(version), c_uint64(0), None)
        symbol = {symbol!r}
        wanted = symbol and ctypes.cast(getattr(card, symbol), c_void_p).value
        say([found.value == wanted, query.value, direct])
        """
    )
    assert said == [True, 0 if symbol else 1, 0 if symbol else 500]


def test_calls_that_name_a_context_since_cuda_13_are_of_that_context() -> None:
    said = on_card(
        """
        stream, context, of_stream, green, device = c_void_p(), c_void_p(), c_void_p(), c_void_p(77), c_int(77)
        call("cudaStreamCreate", byref(stream))
        call("cuCtxGetCurrent", byref(context))
        call("cudaSetDevice", 1)
        call("cuStreamGetCtx_v2", stream, byref(of_stream), byref(green))
        call("cuCtxGetDevice_v2", byref(device), context)
        call("cuCtxSynchronize_v2", context)
        now = c_int(77)
        call("cudaGetDevice", byref(now))
        say([of_stream.value == context.value, green.value, device.value, now.value])
        """,
        devices=2,
    )
    assert said == [True, None, 0, 1]


def test_errors_have_names_and_texts() -> None:
    said = on_card(
        """
        card.cudaGetErrorString.restype = card.cudaGetErrorName.restype = ctypes.c_char_p
        text = ctypes.c_char_p()
        call("cuGetErrorName", c_int(2), byref(text))
        texts = [card.cudaGetErrorString(2), card.cudaGetErrorName(2), card.cudaGetErrorString(12345), text.value]
        say([*(one.decode() for one in texts), status("cuGetErrorName", c_int(12345), byref(text))])
        """
    )
    assert said == [
        "out of memory",
        "cudaErrorMemoryAllocation",
        "unrecognized error code",
        "CUDA_ERROR_OUT_OF_MEMORY",
        1,
    ]
