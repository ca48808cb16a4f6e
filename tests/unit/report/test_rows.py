from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.result import PhaseBytes, Site, SiteBytes
from oomscope.report.rows import highest_phases, lines
from tests.unit.report import results

SITE_BYTES = st.builds(
    SiteBytes,
    site=st.builds(
        Site,
        file=st.sampled_from(["a.py", "b.py"]),
        line=st.integers(1, 9),
        function=st.just("f"),
        module=st.sampled_from(["", "x", "y"]),
    ),
    bytes=st.integers(0, 2**40),
    count=st.integers(1, 9),
    category=st.sampled_from(["activation", "temporary"]),
)


@given(st.lists(SITE_BYTES), st.integers(1, 12))
def test_rows_sum_to_the_sites(sites: list[SiteBytes], shown: int) -> None:
    rows = lines(sites, shown)
    assert sum(row.bytes for row in rows) == sum(site.bytes for site in sites)
    assert sum(row.count for row in rows) == sum(site.count for site in sites)
    assert len(rows) <= shown + 1


def test_modules_that_run_one_line_are_one_row() -> None:
    other = replace(results.SITES[0], site=replace(results.MLP, module="layers.4.mlp"))
    (row, _) = lines([results.SITES[0], other, results.SITES[1]])
    assert (row.bytes, row.count, row.module) == (2 * results.SITES[0].bytes, 24, "2 modules")


def test_a_single_module_keeps_its_name() -> None:
    assert lines(results.SITES)[0].module == "layers.3.mlp"
    assert lines(results.SITES)[1].module == ""


def test_each_phase_once_at_its_highest() -> None:
    def row(iteration: int, phase: str, live: int, reserved: int) -> PhaseBytes:
        return PhaseBytes(iteration=iteration, phase=phase, requested_bytes=live, reserved_bytes=reserved)

    phases = [row(0, "forward", 1, 9), row(0, "backward", 5, 6), row(1, "forward", 3, 4), row(1, "backward", 5, 7)]
    assert highest_phases(phases) == [row(1, "forward", 3, 9), row(0, "backward", 5, 7)]
