"""Bands from the spread, and no band from what cannot be repeated."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.errors import TargetError
from oomscope.gate.calibrate import calibrate
from oomscope.gate.compare import compare_case
from oomscope.gate.status import Status
from oomscope.units import GiB, KiB
from tests.unit.gate.nights import baseline, case, entry, failed, measured, out_of_memory, played


def found(*results):
    return calibrate(case(), played(*results), len(results), lambda _done: None, threading.Event())


def test_without_spread_the_bands_are_zero() -> None:
    bands = {name: spread.bands for name, spread in found(measured(), measured(), measured()).spreads.items()}
    assert {(band.warn.absolute, band.fail.absolute) for band in bands.values()} == {(0, 0)}


@settings(max_examples=40)
@given(st.lists(st.integers(0, KiB), min_size=2, max_size=6))
def test_no_repeat_is_told_of_by_its_own_bands(noise) -> None:
    results = [measured(GiB + more) for more in noise]
    made = found(*results)
    expected = baseline(case(), results[0])
    entries = [("tiny", made.entry(entry(case(), results[0])))]
    for result in results:
        assert compare_case(case(), result, expected.accepting(entries)).status in {Status.SAME, Status.BETTER}
    far = measured(GiB + 3 * (max(noise) - min(noise)) + KiB + 1)
    assert compare_case(case(), far, expected.accepting(entries)).status is Status.WORSE


@pytest.mark.parametrize("other", [failed(), out_of_memory(), measured(versions={"torch": "2.14.0"})])
def test_repeats_that_end_otherwise_give_no_bands(other) -> None:
    with pytest.raises(TargetError):
        found(measured(), other)
