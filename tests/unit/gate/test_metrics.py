"""Metrics of a measurement, and how wide their bands are."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import InputError
from oomscope.gate.suite.metrics import Band, values_of
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import measured, out_of_memory, peak


def test_metrics_of_a_run_that_fits() -> None:
    result = measured(GiB, reserved=GiB + MiB, pinned_bytes=7, flops={"model": 3, "recompute": 1}, non_torch_bytes=9)
    assert result.reserved_peak is not None
    result = replace(result, reserved_peak=replace(result.reserved_peak, largest_free_bytes=512))
    assert values_of(result) == {
        "peak_requested": GiB,
        "peak_reserved": GiB + MiB,
        "overhead": MiB,
        "largest_free": 512,
        "pinned": 7,
        "flops": 4,
    }
    assert values_of(replace(result, backend="cuda"))["non_torch"] == 9
    before = replace(result.reserved_peak, reserved_bytes=GiB + 3 * MiB, reserved_then_bytes=GiB + MiB)
    assert values_of(replace(result, reserved_peak=before))["overhead"] == MiB


def test_a_run_that_was_cut_off_does_not_pass_for_a_small_one() -> None:
    assert values_of(out_of_memory(GiB)) == {}
    assert values_of(out_of_memory(GiB, demand=2 * GiB)) == {
        "peak_requested": 2 * GiB,
        "peak_reserved": 2 * GiB,
        "pinned": 0,
    }


def test_a_run_that_emptied_its_cache_stands_for_what_it_would_hold() -> None:
    tight = replace(measured(GiB), demand_peak=peak(GiB, 3 * GiB))
    assert values_of(tight)["peak_reserved"] == 3 * GiB
    assert "overhead" not in values_of(tight)
    assert "peak_reserved" not in values_of(replace(measured(GiB), demand_cut=True))


SIZES = st.integers(0, 2**60)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("64MiB", Band(absolute=64 * MiB)),
        (0, Band()),
        ("2%", Band(relative=Fraction(1, 50))),
        ("0.5 %", Band(relative=Fraction(1, 200))),
        (["64MiB", "2%"], Band(absolute=64 * MiB, relative=Fraction(1, 50))),
    ],
)
def test_what_is_written(written: object, expected: Band) -> None:
    assert Band.parse(written) == expected


@pytest.mark.parametrize("written", [None, True, -1, 1.5, "much", "-2%", "%", [], ["2%", None], {"absolute": 1}])
def test_what_is_no_band(written: object) -> None:
    with pytest.raises(InputError, match="write a size such as"):
        Band.parse(written)


@given(SIZES, st.integers(0, 10_000), SIZES)
def test_a_band_survives_being_written(absolute: int, hundredths: int, expected: int) -> None:
    band = Band(absolute=absolute, relative=Fraction(hundredths, 10_000))
    again = Band.parse(band.to_text())
    assert again == band
    assert again.width(expected) >= absolute
