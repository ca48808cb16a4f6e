"""The markers that limit memory, and what a result is beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import InputError
from oomscope.probe.result import Oom, Peak, ProbeResult, ReservedPeak, Site
from oomscope.pytest_plugin.limits import KINDS, Limit, complaint
from oomscope.units import GiB, MiB

MEMORY, OVERHEAD = KINDS


def mark(name: str, *args: object, **kwargs: object) -> pytest.Mark:
    return getattr(pytest.mark, name)(*args, **kwargs).mark


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "metric", "size"),
    [
        (MEMORY, ("24 GiB",), {}, "reserved", 24 * GiB),
        (MEMORY, (24 * GiB,), {}, "reserved", 24 * GiB),
        (MEMORY, ("24 GB",), {"of": "requested"}, "requested", 24 * 10**9),
        (OVERHEAD, ("2 GiB",), {}, "overhead", 2 * GiB),
        (OVERHEAD, (0,), {}, "overhead", 0),
    ],
)
def test_read(kind, arguments, options, metric: str, size: int) -> None:
    limit = kind.read(mark(kind.name, *arguments, **options))
    assert limit == Limit(marker=kind.name, metric=metric, limit_bytes=size)


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "complaint"),
    [
        (MEMORY, (), {}, "takes one size, not 0"),
        (MEMORY, ("1 GiB", "2 GiB"), {}, "takes one size, not 2"),
        (MEMORY, ("24 Gib b",), {}, "is not a size"),
        (MEMORY, (24.5,), {}, "24.5 is not a size"),
        (MEMORY, (True,), {}, "True is not a size"),
        (MEMORY, (None,), {}, "None is not a size"),
        (MEMORY, (-1,), {}, "-1 is not a size"),
        (
            MEMORY,
            ("1 GiB",),
            {"of": "active"},
            "of='active' is not something it limits; give 'reserved' or 'requested'",
        ),
        (MEMORY, ("1 GiB",), {"metric": "requested"}, "has no argument 'metric'"),
        (OVERHEAD, ("1 GiB",), {"of": "requested"}, "has no argument 'of'"),
    ],
)
def test_refused(kind, arguments, options, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        kind.read(mark(kind.name, *arguments, **options))
    assert complaint in str(refused.value)


PEAK = "peak: 60.00 MiB requested in backward, at model.py:7 forward"
SITE = Site(file="model.py", line=7, function="forward")


def result(live: int = 60, reserved: int = 100, live_then: int = 40) -> ProbeResult:
    """A run with ``live`` MiB at its peak, and ``reserved`` while ``live_then`` were alive."""
    return ProbeResult(
        backend="virtual",
        outcome="fits",
        gpu="h100-80gb",
        peak=Peak(
            requested_bytes=live * MiB,
            allocated_bytes=live * MiB,
            active_bytes=live * MiB,
            reserved_bytes=reserved * MiB,
            iteration=-1,
            phase="backward",
            microbatch=-1,
            site=SITE,
            event=3,
        ),
        reserved_peak=ReservedPeak(
            reserved_bytes=reserved * MiB,
            requested_bytes=live_then * MiB,
            iteration=-1,
            phase="optimizer",
            microbatch=-1,
            event=5,
            reserved_then_bytes=reserved * MiB,
        ),
    )


def limit(metric: str, size: int) -> Limit:
    return Limit(marker="limit", metric=metric, limit_bytes=size * MiB)


@given(st.sampled_from(["requested", "reserved", "overhead"]), st.integers(0, 200))
def test_a_limit_is_the_most_that_passes(metric: str, size: int) -> None:
    measured = {"requested": 60, "reserved": 100, "overhead": 60}[metric]
    assert (complaint(limit(metric, size), result()) is None) == (measured <= size)


@pytest.mark.parametrize(
    ("metric", "first", "second"),
    [
        (
            "reserved",
            "limit: 100.00 MiB held by the allocator on virtual h100-80gb, 90.00 MiB over the limit of 10.00 MiB",
            f"{PEAK}; held: 100.00 MiB with 40.00 MiB requested in optimizer",
        ),
        (
            "requested",
            "limit: 60.00 MiB requested at once on virtual h100-80gb, 50.00 MiB over the limit of 10.00 MiB",
            PEAK,
        ),
    ],
)
def test_two_lines(metric: str, first: str, second: str) -> None:
    assert complaint(limit(metric, 10), result()) == f"{first}\n{second}"


def test_overhead_is_that_of_its_own_moment() -> None:
    run = result()
    assert run.reserved_peak is not None
    run = replace(run, reserved_peak=replace(run.reserved_peak, reserved_then_bytes=90 * MiB))
    assert complaint(limit("overhead", 50), run) is None
    assert "held: 90.00 MiB with 40.00 MiB requested" in (complaint(limit("overhead", 49), run) or "")


def out_of_memory() -> ProbeResult:
    failed = Oom(requested_bytes=MiB, iteration=0, phase="forward", microbatch=0, site=SITE, message="out of memory")
    return replace(result(), outcome="oom", oom=failed)


@pytest.mark.parametrize("metric", ["reserved", "requested", "overhead"])
def test_a_run_that_was_cut_off_keeps_to_no_limit(metric: str) -> None:
    said = complaint(limit(metric, 1000), out_of_memory())
    assert said is not None
    assert "OUT OF MEMORY asking for 1.00 MiB in forward of iteration 0, at model.py:7" in said
    assert said.count("\n") == 1
