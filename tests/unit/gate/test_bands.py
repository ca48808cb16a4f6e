"""How wide a band is, and what may be written for one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import InputError
from oomscope.gate.suite.bands import Band
from oomscope.units import MiB

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


def test_the_larger_part_holds() -> None:
    band = Band.parse(["64MiB", "2%"])
    assert band.width(1024 * MiB) == 64 * MiB
    assert band.width(10_000 * MiB) == 200 * MiB


@given(SIZES, st.integers(0, 10_000), SIZES)
def test_a_band_survives_being_written(absolute: int, hundredths: int, expected: int) -> None:
    band = Band(absolute=absolute, relative=Fraction(hundredths, 10_000))
    again = Band.parse(band.to_text())
    assert again == band
    assert again.width(expected) >= absolute
