"""Rows of growth sum to the growth, whatever moved."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.results.growth import BEYOND_FAILURE, FAILED_REQUEST, dominant_growth, grew, grown_sites
from oomscope.probe.demand import requested_bytes
from oomscope.probe.result import ProbeResult, SiteBytes
from tests.unit.bisect.probe_results import error, fits, oom, peak, row

site_rows = st.lists(
    st.builds(
        row,
        st.integers(1, 50),
        st.integers(1, 6),
        st.sampled_from(["forward", "loss"]),
        st.sampled_from(["activation", "temporary"]),
    ).flatmap(lambda plain: st.sampled_from(["", "a", "b"]).map(lambda module: of_module(plain, module))),
    max_size=8,
).map(tuple)


def of_module(plain: SiteBytes, module: str) -> SiteBytes:
    return replace(plain, site=replace(plain.site, module=module))


def total(rows: tuple[SiteBytes, ...]) -> int:
    return sum(row.bytes for row in rows)


@given(site_rows, site_rows)
def test_the_rows_sum_to_the_difference(before: tuple[SiteBytes, ...], after: tuple[SiteBytes, ...]) -> None:
    rows = grew(before, after)
    assert sum(row.delta_bytes for row in rows) == total(after) - total(before)
    assert all(row.delta_bytes for row in rows)
    sizes = [abs(row.delta_bytes) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


results = st.one_of(
    site_rows.map(lambda rows: fits(total(rows), sites=rows)),
    st.builds(
        lambda rows, asked, below, demand: oom(
            live=total(rows), at_failure=max(0, total(rows) - below), requested=asked, demand=demand, sites=rows
        ),
        site_rows,
        st.integers(1, 99),
        st.integers(0, 20),
        st.none() | st.integers(0, 600),
    ),
    st.just(error("import")),
)


@given(results, results)
def test_growth_of_results_sums_to_that_of_their_live_bytes(before: ProbeResult, after: ProbeResult) -> None:
    rows = grown_sites(before, after)
    assert sum(row.delta_bytes for row in rows) == requested_bytes(after) - requested_bytes(before)


def test_the_failed_request_and_what_came_after_have_rows_of_their_own() -> None:
    rows = grown_sites(fits(100), oom(live=900, requested=200, demand=1500))
    assert {row.category: row.delta_bytes for row in rows} == {
        "activation": 800,
        FAILED_REQUEST: 200,
        BEYOND_FAILURE: 400,
    }
    request = next(row for row in rows if row.category == FAILED_REQUEST)
    assert request.site is not None
    assert request.site.function == "loss"


def test_what_went_from_one_line_to_another_does_not_explain_the_change() -> None:
    """The work of one line is done in a new function now, and keeps half of a state beside."""
    half, whole = row(5, 9, "step", "optimizer_state"), row(10, 9, "step", "optimizer_state")
    inline = (row(64, 1), row(7, 2), whole)
    called = (row(64, 40, "norm"), row(7, 2), half)
    for before, after in ((inline, called), (called, inline)):
        dominant = dominant_growth(fits(total(before), sites=before), fits(total(after), sites=after))
        assert dominant is not None
        assert dominant.category == "optimizer_state"


def test_a_line_explains_a_change_by_what_it_holds_in_all_modules() -> None:
    layers = tuple(of_module(row(40, 11), module) for module in ("encoder", "decoder"))
    before, after = (row(10, 23),), (row(60, 23), *layers)
    dominant = dominant_growth(fits(total(before), sites=before), fits(total(after), sites=after))
    assert dominant is not None
    assert dominant.site is not None
    assert (dominant.site.line, dominant.delta_bytes) == (11, 80)


def test_the_line_that_explains_a_change_has_the_bytes_that_did_not_move() -> None:
    """All but 64 of the 512 bytes of one line went to another; of another category some went elsewhere."""
    inline, called = (row(512, 74),), (row(448, 90, "loss"),)
    mixed = (row(412, 90, "loss"), row(36, 90, "loss", "temporary"))
    for before, after, sign in ((inline, called, -1), (called, inline, 1), (inline, mixed, -1), (mixed, inline, 1)):
        dominant = dominant_growth(fits(total(before), sites=before), fits(total(after), sites=after))
        assert dominant is not None
        assert dominant.site is not None
        assert (dominant.site.line, dominant.delta_bytes) == (74, 64 * sign)


def test_the_lines_of_the_run_without_a_limit_stand_for_all_of_its_demand() -> None:
    """Where the whole run is known, the lines at its own peak explain the growth, not those at the failure."""
    whole = (row(900, 3), row(600, 99, "loss", "temporary"))
    after = oom(live=900, requested=200, demand=1500, demand_peak=peak(1500, sites=whole))
    rows = grown_sites(fits(800, sites=(row(800, 3),)), after)
    assert [(grown.category, grown.delta_bytes) for grown in rows] == [("temporary", 600), ("activation", 100)]
