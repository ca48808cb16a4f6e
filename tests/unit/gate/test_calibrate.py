"""Bands from the spread, and no band from what cannot be repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.errors import MachineUnfitError, TargetError
from oomscope.gate.calibrate import Spread, calibrate
from oomscope.gate.night.compare import compare_case
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import METRICS
from oomscope.units import GiB, KiB
from tests.unit.gate.nights import baseline, case, entry, failed, measured, out_of_memory, played


def found(*results):
    return calibrate(case(), played(*results), len(results), lambda _done: None)


@given(st.sampled_from(sorted(METRICS)), st.integers(0, GiB))
def test_no_band_is_narrower_than_the_default_or_the_spread(metric: str, size: int) -> None:
    bands, default = Spread(least=GiB, most=GiB + size).bands(metric), METRICS[metric].bands
    assert bands.warn.width(GiB) == max(size, default.warn.width(GiB))
    assert bands.fail.width(GiB) == max(2 * size, default.fail.width(GiB))


@settings(max_examples=40)
@given(st.lists(st.integers(0, KiB), min_size=2, max_size=6))
def test_no_repeat_lies_beyond_its_own_bands(noise) -> None:
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


def test_what_the_rest_of_the_machine_had_left_makes_no_band() -> None:
    ran_out = out_of_memory(GiB)
    assert ran_out.verdict is not None
    others = replace(ran_out, verdict=replace(ran_out.verdict, kind="host"))
    with pytest.raises(MachineUnfitError, match="ran out of memory on repeat 1: Too much"):
        found(others, others)
