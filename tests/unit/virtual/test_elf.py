"""ELF tables are read as the tools of the system read them."""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.virtual.elf import Symbol, read_elf
from tests.unit.virtual.libraries import compile_library, needs_compiler

SOURCE = """
int wanted_function(int); extern int wanted_object; int optional(void) __attribute__((weak));
int offered(void) { return wanted_function(wanted_object) + (optional ? optional() : 0); }
int also_offered = 3;
static int hidden(void) { return 1; }
int (*keep(void))(void) { return hidden; }
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    base = "int wanted_function(int n) { return n; } int wanted_object;"
    (tmp_path / "base.map").write_text("BASE_1 { global: wanted_function; };\n")
    compile_library(
        tmp_path / "libbase.so.7", base, "-Wl,-soname,libbase.so.7", "-Wl,--version-script=base.map", "-nostdlib"
    )
    return compile_library(
        tmp_path / "libtop.so",
        SOURCE,
        "-Wl,-soname,libtop.so.2",
        "libbase.so.7",
        "-nostdlib",
        "-Wl,-rpath,$ORIGIN/a:/b",
    )


@needs_compiler
def test_name_needs_wants_and_offers_are_read(library: Path) -> None:
    elf = read_elf(library, exports=True)
    assert elf.machine == platform.machine()
    assert elf.soname == "libtop.so.2"
    assert elf.needed == ("libbase.so.7",)
    assert elf.search_path == ("$ORIGIN/a", "/b")
    assert set(elf.wanted) == {
        Symbol("wanted_function", "BASE_1", "libbase.so.7"),
        Symbol("wanted_object"),
        Symbol("optional", is_weak=True),
    }
    assert elf.exported == {"offered", "also_offered", "keep"}


@needs_compiler
def test_a_stripped_library_reads_alike(library: Path) -> None:
    whole = read_elf(library, exports=True)
    subprocess.run(["strip", "--strip-all", library], check=True)
    assert read_elf(library, exports=True) == whole


@needs_compiler
def test_a_library_that_offers_nothing_exports_nothing(tmp_path: Path) -> None:
    empty = compile_library(tmp_path / "libempty.so", "", "-nostdlib", "-Wl,-soname,libempty.so")
    assert read_elf(empty, exports=True).exported == frozenset()


@pytest.mark.skipif(shutil.which("nm") is None, reason="no binutils")
def test_a_large_library_reads_as_nm_reads_it() -> None:
    import numpy as np

    path = next(Path(np.__file__).parent.rglob(f"_multiarray_umath*{sysconfig.get_config_var('EXT_SUFFIX')}"))
    printed = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout.splitlines()
    undefined = {line.split()[-1].split("@")[0] for line in printed if line.split()[-2] in "Uwv"}
    defined = {line.split()[-1].split("@")[0] for line in printed if line.split()[-2] not in "Uwv"}
    elf = read_elf(path, exports=True)
    assert {symbol.name for symbol in elf.wanted} == undefined
    assert len(undefined) > 100
    assert elf.exported == defined


@needs_compiler
@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_library_is_a_value_error(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    whole = folder / "libwhole.so"
    if not whole.exists():
        compile_library(whole, SOURCE, "-nostdlib")
    content = bytearray(whole.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for _ in range(data.draw(st.integers(0, 8), label="changed bytes")):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "libdamaged.so"
    damaged.write_bytes(content)
    with contextlib.suppress(ValueError):
        read_elf(damaged, exports=True)


def test_what_is_no_library_is_a_value_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        read_elf(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        read_elf(tmp_path / "absent")
