from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import InputError
from oomscope.units import EiB, GiB, PiB, format_size, parse_size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (-1536, "-1.50 KiB"), (79 * GiB, "79.00 GiB"), (3 * PiB, "3.00 PiB"), (1 << 62, "4.00 EiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**63))
def test_a_size_that_was_shown_can_be_read(size: int) -> None:
    shown = format_size(size, digits=6)
    assert parse_size(shown) == pytest.approx(size, rel=1e-6, abs=1)


def test_units_of_both_kinds() -> None:
    assert (parse_size("2EiB"), parse_size("2 P"), parse_size("1EB")) == (2 * EiB, 2 * PiB, 10**18)
    with pytest.raises(InputError, match="is not a size"):
        parse_size("1ZiB")
