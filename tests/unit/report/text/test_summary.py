from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from oomscope.report.text.console import show
from oomscope.report.text.summary import explain_summary, probe_summary
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.verdict_types import LeakSuspect
from oomscope.units import GiB, MiB
from tests.unit.report import results

FIXTURES = Path(__file__).parents[4] / "fixtures"
LEAK = replace(
    results.FITS,
    verdict=replace(
        results.FITS.verdict,
        tags=("leak",),
        leak=LeakSuspect(bytes_per_iteration=512 * MiB, iterations=3, site=results.LOSS),
    ),
)
TIGHT = replace(
    results.FITS,
    peak=replace(results.PEAK, reserved_bytes=9 * GiB - 100 * MiB),
    reserved_peak=replace(results.FITS.reserved_peak, reserved_bytes=9 * GiB - 100 * MiB),
)
DEMAND = replace(results.CAPACITY, demand_bytes=11 * GiB, demand_peak=replace(results.PEAK, requested_bytes=11 * GiB))


def printed(report: RenderableType) -> list[str]:
    file = io.StringIO()
    show(Console(file=file, width=200, highlight=False, emoji=False, markup=False), report)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("result", "status", "peak", "advice"),
    [
        (results.FITS, "FITS, 2.00 GiB to spare", "6.00 GiB requested in backward of iteration 1", "Nothing: the run"),
        (TIGHT, "FITS, 100.00 MiB to spare", "8.90 GiB reserved at most", "100.00 MiB to spare is tight"),
        (LEAK, "FITS", "model.py:88 forward in layers.3.mlp", "512.00 MiB more after each iteration"),
        (results.OOM, "OUT OF MEMORY asking for 1.50 GiB", "6.00 GiB requested before the failure", "same allocations"),
        (results.CONFIRMED, "OUT OF MEMORY", "6.00 GiB requested before", "the whole program ran under it"),
        (DEMAND, "OUT OF MEMORY", "11.00 GiB requested in backward of iteration 1", "reduce live memory"),
        (results.HOST, "OUT OF HOST MEMORY", "6.00 GiB requested", None),
    ],
)
def test_a_probe_in_eight_lines(result, status: str, peak: str, advice: str | None) -> None:
    shown = printed(probe_summary(result, title="train.py"))
    assert len(shown) <= 8
    assert shown[0] == "train.py · virtual h100-80gb · 9.00 GiB for this process"
    assert shown[1].startswith(status)
    assert any(peak in line for line in shown if line.startswith(("Peak", "Needs")))
    assert sum("GiB  activation" in line or "GiB  temporary" in line for line in shown) == 2
    assert (advice is None) == (not any(line.startswith("What to do") for line in shown))
    assert advice is None or any(advice in line for line in shown)
    assert any(line.startswith("Verdict") for line in shown) == (result not in (results.FITS, TIGHT))


def test_a_rank_of_a_world_is_named_and_notes_follow() -> None:
    shown = printed(probe_summary(replace(results.FITS, rank=3, world_size=8, notes=("a guess",))))
    assert shown[0].startswith("rank 3 of 8 · ")
    assert shown[-1] == "note: a guess"


def test_what_was_not_measured_has_its_reason() -> None:
    assert printed(probe_summary(results.BROKEN))[1] == "NOT MEASURED (import): No module named 'tinytrain.data'"


def test_a_snapshot_in_eight_lines() -> None:
    found = explain_path(FIXTURES / "snapshots" / "torch-2.13-oom.pickle.zst").found
    assert isinstance(found, Explanation)
    shown = printed(explain_summary(found))
    assert len([line for line in shown if not line.startswith("note:")]) <= 8
    assert shown[1].startswith("OUT OF MEMORY asking for")
    assert any(line.startswith("Held at failure") for line in shown)
    assert any(line.startswith("What to do") for line in shown)


def test_the_same_module_of_several_layers_is_one_name() -> None:
    first = results.SITES[0]
    layers = tuple(replace(first, site=replace(first.site, module=f"h.{n}.mlp")) for n in range(12))
    assert any(
        line.endswith("in h.*.mlp")
        for line in printed(probe_summary(replace(results.FITS, peak=replace(results.PEAK, sites=layers))))
    )
