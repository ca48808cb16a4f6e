"""Which measurement tells which metric."""

from __future__ import annotations

from dataclasses import replace

from oomscope.gate.suite.metrics import METRICS, values_of
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import failed, measured, out_of_memory, peak


def test_what_a_run_tells_that_fits() -> None:
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


def test_a_failure_tells_nothing() -> None:
    assert values_of(failed()) == {}


def test_a_run_that_was_cut_off_does_not_pass_for_a_small_one() -> None:
    assert set(values_of(out_of_memory(GiB))) == {"pinned"}
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


def test_less_is_worse_only_of_free_blocks() -> None:
    assert [name for name, metric in METRICS.items() if not metric.is_worse_when_larger] == ["largest_free"]


def test_what_grows_worse_as_something_gets_better_does_not_count_by_default() -> None:
    """Less requested memory in the same segments is more overhead; less waste is a smaller free block."""
    assert [name for name, metric in METRICS.items() if not metric.by_default] == ["overhead", "largest_free"]
