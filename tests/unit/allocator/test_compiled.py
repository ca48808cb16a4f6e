"""Where the compiled engine is kept, and what happens where it cannot be, or is damaged."""

from __future__ import annotations

import functools

import pytest

from oomscope.allocator import AllocatorSettings, Driver, compiled, replay
from oomscope.allocator.lowering import machine
from oomscope.units import GiB

MACHINE_CODE = functools.cache(machine.machine_code)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "machine_code", MACHINE_CODE)
    compiled.compiled_run.cache_clear()
    yield compiled.cache_file()
    compiled.compiled_run.cache_clear()


def place_one() -> int:
    outcome = replay([0], [0], [512], settings=AllocatorSettings.parse(""), driver=Driver(GiB), compiled=True)
    return int(outcome.sizes[0])


def test_it_is_compiled_once(cache, monkeypatch):
    assert not compiled.is_compiled()
    assert place_one() == 512
    assert compiled.is_compiled()
    assert [each.name for each in cache.parent.iterdir()] == ["run.o"]
    monkeypatch.setattr(machine, "machine_code", pytest.fail)
    compiled.compiled_run.cache_clear()
    assert place_one() == 512


@pytest.mark.parametrize(
    "damage", [lambda kept: kept[:-1], lambda kept: b"", lambda kept: kept[:40] + b"x" + kept[41:]]
)
def test_a_damaged_one_is_made_again(cache, damage):
    place_one()
    whole = cache.read_bytes()
    cache.write_bytes(damage(whole))
    compiled.compiled_run.cache_clear()
    assert place_one() == 512
    assert cache.read_bytes() == whole


def test_it_runs_also_where_it_cannot_be_kept(cache, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert place_one() == 512
    assert not compiled.is_compiled()


def test_another_processor_has_its_own(cache, monkeypatch):
    monkeypatch.setattr(machine, "target", lambda: ("riscv64", "generic", ""))
    assert compiled.cache_file() != cache
