"""Axes hold all values between round ticks that are told exactly, and begin above zero only where little changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.charts.plot import FAR, axis_of
from oomscope.units import GiB, MiB

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([], ("0", "1 B")),
        ([0], ("0", "1 B")),
        ([GiB], ("0", "0.2 GiB", "0.4 GiB", "0.6 GiB", "0.8 GiB", "1.0 GiB")),
        ([130 * MiB, 138 * MiB], ("125 MiB", "130 MiB", "135 MiB")),
        ([60 * GiB, 60 * GiB + MiB], ("59.8 GiB", "59.9 GiB", "60.0 GiB", "60.1 GiB")),
        ([60 * GiB, 60 * GiB + 200 * MiB], ("59.9 GiB", "60.0 GiB", "60.1 GiB")),
    ],
)
def test_ticks_are_round(values, names) -> None:
    assert axis_of("peak_requested", values).names[: len(names)] == names


def test_operations_are_counted_in_tens() -> None:
    assert axis_of("flops", [4 * 10**12]).names == ("0", "1 TFLOP", "2 TFLOP", "3 TFLOP", "4 TFLOP")


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=5), st.sampled_from(["peak_requested", "flops"]))
def test_every_value_lies_on_the_axis_and_no_two_ticks_read_alike(values, metric) -> None:
    axis = axis_of(metric, values)
    assert all(0 <= axis.share(value) <= 1 for value in values)
    assert len(set(axis.names)) == len(axis.ticks) <= 15
    spread = max(values) - min(values)
    assert (axis.low > 0) <= (0 < FAR * spread < max(values))
    if metric == "peak_requested" and len(axis.ticks) > 1:
        step = axis.ticks[1] - axis.ticks[0]
        for tick, name in zip(axis.ticks, axis.names, strict=True):
            number, _, unit = name.partition(" ")
            assert abs(float(number) * UNITS[unit or "B"] - tick) <= max(1, step / 10)
