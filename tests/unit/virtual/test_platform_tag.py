"""A wheel is tagged with the oldest glibc that its library can run on, and refused where it needs more than glibc."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from oomscope.errors import MachineUnfitError
from oomscope.virtual.build import platform_tag
from oomscope.virtual.elf import Elf, Symbol
from oomscope.virtual.sonames import CARD
from tests.unit.virtual.libraries import compile_library, needs_compiler


@pytest.fixture
def wanting(monkeypatch: pytest.MonkeyPatch) -> list[Symbol]:
    """What the library wants that is looked at, beside a symbol without a version."""
    wanted = [Symbol("__gmon_start__", is_weak=True)]
    elf = Elf("aarch64", CARD, ("libc.so.6", "ld-linux-aarch64.so.1"), (), wanted, frozenset())  # type: ignore[arg-type]
    monkeypatch.setattr("oomscope.virtual.build.read_elf", lambda path: elf)
    return wanted


def test_the_newest_version_decides_as_a_number(wanting: list[Symbol]) -> None:
    wanting += [Symbol(f"f{minor}", f"GLIBC_2.{minor}", "libc.so.6") for minor in (9, 28, 4)]
    wanting.append(Symbol("g", "GLIBC_2.2.5", "libc.so.6"))
    assert platform_tag(Path(CARD)) == "manylinux_2_28_aarch64"


def test_old_symbols_need_no_older_tag_than_there_is(wanting: list[Symbol]) -> None:
    wanting.append(Symbol("malloc", "GLIBC_2.2.5", "libc.so.6"))
    assert platform_tag(Path(CARD)) == "manylinux_2_17_aarch64"


def test_a_version_of_another_library_is_refused(wanting: list[Symbol]) -> None:
    wanting.append(Symbol("_ZSt4cout", "GLIBCXX_3.4", "libstdc++.so.6"))
    with pytest.raises(MachineUnfitError, match=r"needs GLIBCXX_3.4, which is not on every Linux; link it statically"):
        platform_tag(Path(CARD))


@needs_compiler
def test_a_built_card_needs_glibc_alone(small_card: Path) -> None:
    assert platform_tag(small_card / CARD).startswith("manylinux_2_")
    assert platform_tag(small_card / CARD).endswith(f"_{platform.machine()}")


@needs_compiler
def test_a_library_that_is_not_everywhere_is_refused(tmp_path: Path) -> None:
    compile_library(tmp_path / "libother.so", "int f(void) { return 1; }", "-Wl,-soname,libother.so.1")
    library = compile_library(tmp_path / "lib.so", "int f(void); int g(void) { return f(); }", "libother.so")
    with pytest.raises(MachineUnfitError, match=r"lib.so: needs libother.so.1"):
        platform_tag(library)
