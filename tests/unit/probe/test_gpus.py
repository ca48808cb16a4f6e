from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import UsageError
from oomscope.probe.gpus import _ALIASES, DEFAULT_GPU, GPUS, find_gpu
from oomscope.units import GiB, MiB


@pytest.mark.parametrize("spelling", ["h100-80gb", "H100-80GB", "h100_80gb", "H100 80gb", "h100"])
def test_a_card_is_found_however_it_is_spelled(spelling: str) -> None:
    assert find_gpu(spelling).name == "h100-80gb"


def test_cards_are_found_by_what_the_driver_calls_them() -> None:
    called = {gpu.name: re.search(r"'((?:NVIDIA|Tesla) [^']*)'", gpu.source) for gpu in GPUS.values()}
    found = {name: find_gpu(match[1]).name for name, match in called.items() if match}
    assert len(found) >= len(GPUS) - 2, "the sources of all others quote the driver"
    assert all(name == other for name, other in found.items())


def test_an_80_gb_card_has_about_79_gib() -> None:
    for name in ("h100-80gb", "h100-pcie", "a100-80gb"):
        assert 79.0 * GiB < GPUS[name].total_bytes < 79.6 * GiB


def test_every_card_is_complete() -> None:
    assert DEFAULT_GPU in GPUS
    assert set(_ALIASES.values()) <= set(GPUS)
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert gpu.total_bytes % MiB == 0
        assert gpu.multiprocessors > 0
        assert gpu.source


@pytest.mark.parametrize(("name", "meant"), [("h10", "h100-80gb"), ("a100-8gb", "a100-80gb"), ("rtx409", "rtx4090")])
def test_a_near_miss_is_told_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean .*{meant}"):
        find_gpu(name)


def test_a_stranger_is_told_what_there_is() -> None:
    with pytest.raises(UsageError, match="known cards: b200, h200"):
        find_gpu("potato!")


@given(st.text(st.characters(codec="ascii"), max_size=20).filter(lambda name: "".join(name.split())))
def test_a_stranger_is_told_in_one_line(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(f"x{name}?")
    assert "\n" not in str(caught.value)
