"""Which bytes a run stands for."""

from __future__ import annotations

from oomscope.probe.demand import is_lower_bound, requested_bytes, reserved_bytes
from oomscope.units import Bytes
from tests.unit.bisect.probe_results import fits, oom, peak


def test_a_run_that_failed_stands_for_what_it_asked_or_for_its_demand() -> None:
    assert requested_bytes(oom(live=900, requested=200)) == 1100
    assert is_lower_bound(oom(live=900, requested=200))
    assert requested_bytes(oom(live=900, requested=200, demand=1500)) == 1500
    assert not is_lower_bound(oom(live=900, requested=200, demand=1500))


def test_reserved_is_what_the_allocator_would_hold_without_a_limit() -> None:
    whole = peak(1500, reserved=2500)
    for capped in (oom(live=900, demand=1500, demand_peak=whole), fits(950, reserved=1000, demand_peak=whole)):
        assert capped.peak is not None
        assert capped.peak.reserved_bytes <= 1000
        assert reserved_bytes(capped) == 2500
    assert reserved_bytes(oom(live=900, demand=None)) == 900


def test_what_is_not_known_is_not_known_of_any_sum() -> None:
    known, printed = Bytes(requested_bytes=700, reserved_bytes=800), Bytes(requested_bytes=500, reserved_bytes=None)
    assert known - printed == Bytes(requested_bytes=200, reserved_bytes=None)
    assert sum((printed - known, known), start=Bytes()) == printed
    assert printed.overhead_bytes is None
    assert (printed - printed).is_nothing
    assert not printed.is_nothing
    assert not Bytes(reserved_bytes=1).is_nothing
