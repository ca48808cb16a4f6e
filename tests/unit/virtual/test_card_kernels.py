"""What the virtual card reads of kernels: which code runs on it, and which of a launch's words are arguments."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import zstandard

from tests.unit.virtual.cubins import EXACT, ZSTD, cubin, fat_binary, image
from tests.unit.virtual.on_card import on_card


@pytest.mark.parametrize(
    ("capability", "versions"),
    [
        ((7, 0), [209]),
        ((8, 0), [80, 80]),
        ((8, 9), [86, 86]),
        ((9, 0), [90, 90]),
        ((12, 1), [95, 121]),
        ((10, 3), [95, 103]),
    ],
)
def test_the_code_that_runs_is_chosen_as_the_driver_chooses(
    capability: tuple[int, int], versions: list[int], tmp_path: Path
) -> None:
    """Machine code of the same major and a minor not above; else PTX, which the driver compiles for the card."""
    images = [image(75, b"x"), image(80, b"x"), image(86, b"x"), image(90, b"x"), image(95, b"x", kind=1)]
    images += [image(100, b"x", flags=EXACT), image(110, b"x", kind=1, flags=EXACT)]
    (tmp_path / "code").write_bytes(fat_binary(*images))
    script = f"""
        kernel, = register(open({str(tmp_path / "code")!r}, "rb").read(), "kernel")
        say([versions(kernel), status("cudaFuncGetAttributes", (c_int * 64)(), ctypes.create_string_buffer(16))])
        """
    assert on_card(script, major=capability[0], minor=capability[1]) == [versions, 98]


def _compressed(code: bytes) -> bytes:
    return image(90, zstandard.ZstdCompressor(level=19).compress(code), flags=ZSTD, whole=len(code))


KERNELS = {"one": [8, 4], "two": [4, 40, 8], "none": []}
CODE = cubin(KERNELS)


@pytest.mark.parametrize("form", [_compressed(CODE), image(90, CODE)], ids=["zstd", "plain"])
def test_only_arguments_count(form: bytes, tmp_path: Path) -> None:
    """Behind an argument's end lies a pointer into a held range: the kernel does not get it."""
    (tmp_path / "code").write_bytes(fat_binary(image(80, b"no code"), form))
    said = on_card(
        f"""
        one, two, none = register(open({str(tmp_path / "code")!r}, "rb").read(), "one", "two", "none")
        p = malloc(MiB)
        def forgotten(kernel, *arguments):
            for i in range(4):
                to_device(p + 512 * i, b"x" * 16)
            assert launch(kernel, *arguments) == 0
            return [i for i in range(4) if unknown(p + 512 * i, 16)]
        a, b, c, d = (pointer(p + 512 * i) for i in range(4))
        say([
            forgotten(one, a + b, struct.pack("<i", 1) + bytes(4) + c, d),
            forgotten(two, bytes(4), bytes(24) + b + bytes(8) + c, d),
            forgotten(two, bytes(4), a * 5, a),
            forgotten(none, a, b),
        ])
        """
    )
    assert said == [[0], [1, 3], [0], []]


def test_without_readable_code_whatever_may_be_an_argument_counts(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(fat_binary(image(90, b"nothing that can be read")))
    said = on_card(
        f"""
        kernel, = register(open({str(tmp_path / "code")!r}, "rb").read(), "kernel")
        p = malloc(MiB)
        to_device(p, b"x")
        to_device(p + 512, b"x")
        launch(kernel, bytes(8), pointer(p))
        say([unknown(p, 1), unknown(p + 512, 1)])
        """
    )
    assert said == [1, 0]


@pytest.mark.parametrize("seed", range(8))
def test_broken_code_harms_nothing(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    files = []
    for i in range(40):
        form = bytearray(_compressed(CODE) if i % 2 else image(90, CODE))
        start = 64 if i % 2 else 64 + 64  # the head tells the size, which the driver checks before
        for _ in range(3):
            form[choose.randrange(start, len(form))] ^= 1 << choose.randrange(8)
        files.append(str(tmp_path / str(i)))
        Path(files[-1]).write_bytes(fat_binary(bytes(form)))
    said = on_card(
        f"""
        p = malloc(MiB)
        for file in {json.dumps(files)}:
            kernel, = register(open(file, "rb").read(), "one")
            to_device(p, b"x")
            launch(kernel, pointer(p), bytes(4))
        say(state().launches)
        """
    )
    assert said == 40


def test_a_module_lists_its_kernels(tmp_path: Path) -> None:
    (tmp_path / "module").write_bytes(cubin({"first": [8, 4, 8]}, registers=96, shared=5000))
    said = on_card(
        f"""
        module, kernel = c_void_p(), c_void_p()
        call("cuModuleLoad", byref(module), {str(tmp_path / "module").encode()!r})
        missing = status("cuModuleGetFunction", byref(kernel), module, b"second")
        call("cuModuleGetFunction", byref(kernel), module, b"first")
        value, offset, size = c_int(), c_size_t(), c_size_t()
        def attribute(number):
            call("cuFuncGetAttribute", byref(value), c_int(number), kernel)
            return value.value
        attributes = [attribute(number) for number in (0, 1, 4)]
        call("cuFuncGetParamInfo", kernel, c_size_t(2), byref(offset), byref(size))
        beyond = status("cuFuncGetParamInfo", kernel, c_size_t(3), byref(offset), byref(size))
        call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(value), kernel, c_int(256), c_size_t(0))
        say([missing, attributes, offset.value, size.value, beyond, value.value])
        """
    )
    assert said == [500, [1024, 5000, 96], 16, 8, 1, 2]


@pytest.mark.parametrize(
    ("grid", "block", "shared", "status"),
    [((1, 1, 1), (1024, 1, 1), 0, 0), ((0, 1, 1), (32, 1, 1), 0, 9), ((1, 65536, 1), (32, 1, 1), 0, 9),
     ((1, 1, 1), (32, 33, 1), 0, 9), ((1, 1, 1), (1, 1, 65), 0, 9), ((1, 1, 1), (32, 1, 1), 227 << 10, 0),
     ((1, 1, 1), (32, 1, 1), (227 << 10) + 1, 1)],
)  # fmt: skip
def test_a_launch_that_no_card_can_do_is_refused(
    grid: tuple[int, ...], block: tuple[int, ...], shared: int, status: int
) -> None:
    said = on_card(
        f"""
        before = state().launches
        arguments = (c_void_p * 1)()
        host = ctypes.create_string_buffer(16)
        refused = status("cudaLaunchKernel", host, Dim3(*{grid}), Dim3(*{block}), arguments, c_size_t({shared}), None)
        say([refused, state().launches - before, status("cudaGetLastError"), status("cudaGetLastError")])
        """
    )
    assert said == [status, int(status == 0), status, 0]
