"""What is built, what leaves the library, and when it is built again."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.errors import MachineUnfitError
from oomscope.virtual import build
from oomscope.virtual.sonames import CARD, KEEPER, SONAMES, file_of
from tests.unit.virtual.libraries import CARD_SOURCES, needs_compiler


@needs_compiler
def test_every_soname_finds_the_card_and_only_interfaces_leave_it(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "lib"
    assert build.build(out, sources=sources)
    program = f"""
import ctypes
ctypes.CDLL({str(out / CARD)!r}, mode=ctypes.RTLD_GLOBAL)
for file in {[file_of(soname) for soname in SONAMES]!r}:
    library = ctypes.CDLL({str(out)!r} + "/" + file, mode=ctypes.RTLD_GLOBAL)
    library.cudaMalloc
for soname in {SONAMES!r}:
    ctypes.CDLL(soname).cudaMalloc
assert ctypes.CDLL("libcudart.so.13").cudaMalloc() == 42
for name in "not_an_interface", "answer":
    try:
        getattr(ctypes.CDLL({str(out / CARD)!r}), name)
    except AttributeError:
        continue
    raise SystemExit(name + " leaves the library")
assert "libcudart.so" not in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


@needs_compiler
def test_only_what_changed_is_compiled_again(sources: Path, small_card: Path) -> None:
    out = small_card
    first = {path.name: path.stat().st_mtime_ns for path in (out / ".objects").iterdir()}
    assert not build.build(out, sources=sources)
    (sources / "core.cpp").write_text(CARD_SOURCES["core.cpp"].replace("41", "42"))
    assert build.build(out, sources=sources)
    second = {path.name: path.stat().st_mtime_ns for path in (out / ".objects").iterdir()}
    assert len(first) == len(second) == 2
    (kept,) = set(first.items()) & set(second.items())
    assert kept[0].startswith("runtime")


@needs_compiler
def test_a_changed_header_and_a_lost_library_are_seen(sources: Path, small_card: Path) -> None:
    out = small_card
    assert not build.build(out, sources=sources)
    (sources / "api.h").write_text(CARD_SOURCES["api.h"] + "// changed\n")
    assert build.build(out, sources=sources)
    assert not build.build(out, sources=sources)
    (out / file_of("libcudart.so.13")).unlink()
    assert build.build(out, sources=sources)
    assert (out / file_of("libcudart.so.13")).is_file()


@needs_compiler
def test_a_failed_build_says_why_in_one_line_and_keeps_the_old_library(
    sources: Path, small_card: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = small_card
    before = (out / CARD).read_bytes()
    (sources / "runtime.c").write_text("int broken(void) { return missing; }\n")
    with pytest.raises(MachineUnfitError, match=r"virtual card: cc fails: runtime.c:1:.*missing") as raised:
        build.build(out, sources=sources)
    assert "\n" not in str(raised.value)
    assert (out / CARD).read_bytes() == before
    assert not [path for path in out.iterdir() if path.name.startswith(".build-")]


def test_without_a_compiler_one_line_says_what_to_install(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MachineUnfitError, match="no C and C\\+\\+ compiler; install gcc and g\\+\\+, or pip install ziglang"
    ):
        build.build(tmp_path / "lib", sources=sources)


def test_ziglang_serves_where_there_is_no_compiler_and_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: object())
    other = build.find_compiler("aarch64-linux-gnu.2.28")
    assert other.c == (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.28")
    monkeypatch.setattr(build, "own_compiler", lambda: None)
    here = build.find_compiler()
    assert here.cxx == (sys.executable, "-m", "ziglang", "c++")


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang")
def test_ziglang_compiles_for_another_machine_and_an_older_glibc(tmp_path: Path) -> None:
    compiler = build.find_compiler("aarch64-linux-gnu.2.28")
    library = tmp_path / KEEPER
    command = [*compiler.c, "-O2", "-shared", "-fPIC", "-o", str(library), str(build.PACKAGE / "startup.c")]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert build.platform_tag(library) == "manylinux_2_17_aarch64"


def test_the_environment_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "env cc -m64")
    monkeypatch.setenv("CXX", "env c++")
    assert build.find_compiler() == build.Compiler(("env", "cc", "-m64"), ("env", "c++"))
