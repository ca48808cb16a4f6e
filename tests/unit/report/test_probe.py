"""A probe in eight lines, its full report, and both at any width."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from oomscope.probe.result import SurvivedFailures
from oomscope.report.commands.probe import probe_report, probe_summary
from oomscope.snapshot.verdict_types import LeakSuspect
from oomscope.units import GiB, MiB
from oomscope.virtual.cards import CARDS
from tests.unit.report import results
from tests.unit.report.printed import printed

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
TRIED = replace(TIGHT, num_alloc_retries=9, survived=SurvivedFailures(count=7, reserved_bytes=7 * GiB))
WHOLE = replace(results.PEAK, requested_bytes=11 * GiB, categories={"activation": 10 * GiB, "temporary": GiB})
DEMAND = replace(results.CAPACITY, demand_bytes=11 * GiB, demand_peak=WHOLE)


@pytest.mark.parametrize(
    ("result", "status", "peak", "advice"),
    [
        (results.FITS, "FITS, 2.00 GiB to spare", "6.00 GiB requested in backward of iteration 1", "Nothing: the run"),
        (TIGHT, "FITS, 100.00 MiB to spare", "8.90 GiB reserved at most", "100.00 MiB to spare is tight"),
        (
            TRIED,
            "FITS, after 7 failed allocations that the program survived; since the last one 2.00 GiB to spare",
            "8.90 GiB reserved at most",
            "Nothing: the run fits",
        ),
        (
            replace(TRIED, survived=SurvivedFailures(count=1, reserved_bytes=None)),
            "FITS, with 1 failed allocation that the program survived",
            "8.90 GiB reserved at most",
            "Nothing: the run fits",
        ),
        (
            replace(TRIED, survived=SurvivedFailures(count=7, reserved_bytes=9 * GiB - 90 * MiB)),
            "FITS, after 7 failed allocations",
            "8.90 GiB reserved at most",
            "90.00 MiB to spare is tight",
        ),
        (LEAK, "FITS", "model.py:88 forward in layers.3.mlp", "512.00 MiB more stay alive after each iteration"),
        (results.OOM, "OUT OF MEMORY asking for 1.50 GiB", "6.00 GiB requested before the failure", "same allocations"),
        (results.CONFIRMED, "OUT OF MEMORY", "6.00 GiB requested before", "the whole program ran under it"),
        (DEMAND, "OUT OF MEMORY", "11.00 GiB requested by a second run", "free at least 2.00 GiB of the 11.00 GiB"),
        (results.HOST, "OUT OF HOST MEMORY", "6.00 GiB requested", None),
    ],
)
def test_a_probe_in_eight_lines(result, status: str, peak: str, advice: str | None) -> None:
    shown = printed(probe_summary(result, title="train.py"), 200).splitlines()
    assert len(shown) <= 8
    assert shown[0] == "train.py · virtual h100-80gb · limited to 10.00 GiB · 9.00 GiB for this process"
    assert shown[1].startswith(status)
    assert any(peak in line for line in shown if line.startswith(("Peak", "Needs")))
    held = ("4.50 GiB  activation", "512.00 MiB  temporary") if result.oom else ("5.00 GiB  activation", "temporary")
    assert all(any(each in line for line in shown) for each in held)
    assert (advice is None) == (not any(line.startswith("What to do") for line in shown))
    assert advice is None or any(advice in line for line in shown)
    is_plain = result in (results.FITS, TIGHT) or result.survived is not None
    assert any(line.startswith("Verdict") for line in shown) != is_plain


@pytest.mark.parametrize(("result", "more"), [(results.FITS, ""), (TIGHT, "100.00 MiB to spare is tight")])
def test_one_stage_of_several_that_fits_is_not_all(result, more: str) -> None:
    shown = printed(probe_summary(replace(result, world_size=4, pipeline_stages=2)), 300)
    assert "only rank 0 of 4 was measured; --rank worst measures every distinct one" in shown
    assert "Nothing: the run fits" not in shown
    assert more in shown


def test_an_optimizer_that_did_not_step_asks_for_more_iterations() -> None:
    shown = printed(probe_summary(replace(results.FITS, unstepped=1)), 300)
    assert "if the optimizer that did not step does so later, give more --iterations" in shown
    assert "Nothing: the run fits" not in shown


def test_what_is_outside_pytorch_is_named_where_it_is_much_of_the_card() -> None:
    shown = printed(probe_summary(replace(results.FITS, limit_bytes=30 * GiB, non_torch_bytes=21 * GiB))).splitlines()
    assert (
        shown[0] == "virtual h100-80gb · limited to 30.00 GiB · 9.00 GiB for this process · 21.00 GiB outside PyTorch"
    )
    failed = printed(probe_summary(replace(results.CAPACITY, limit_bytes=30 * GiB, non_torch_bytes=21 * GiB)), 200)
    assert "free some of the 21.00 GiB outside PyTorch" in failed


def test_a_rank_of_a_world_is_named_and_notes_follow() -> None:
    shown = printed(probe_summary(replace(results.FITS, rank=3, world_size=8, notes=("a guess",)))).splitlines()
    assert shown[0].startswith("rank 3 of 8 · ")
    assert shown[-1] == "note: a guess"


def test_the_first_line_says_how_many_iterations_were_measured() -> None:
    measured = replace(results.FITS, iterations=3)
    for report in (probe_summary, probe_report):
        text = " ".join(printed(report(measured)).split("FITS")[0].split())
        assert text.endswith("3 iterations measured")
        assert "measured" not in printed(report(replace(results.OOM, iterations=None))).split("OUT OF MEMORY")[0]


def test_the_same_module_of_several_layers_is_one_name() -> None:
    first = results.SITES[0]
    layers = tuple(replace(first, site=replace(first.site, module=f"h.{n}.mlp")) for n in range(12))
    result = replace(results.FITS, peak=replace(results.PEAK, sites=layers))
    assert any(line.endswith("in h.*.mlp") for line in printed(probe_summary(result)).splitlines())


def test_an_oom_shows_verdict_gaps_and_every_fix_tried() -> None:
    text = printed(probe_report(results.OOM))
    for piece in (
        "Verdict: fragmentation. The request of 1.50 GiB fits by size",
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
        "free remainders of segments that live blocks pin",
        "fails at event 99",
        "passes",
    ):
        assert piece in text
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_settings_that_were_run_are_distinguished_from_replays() -> None:
    text = printed(probe_report(results.CONFIRMED))
    assert re.search(r"expandable_segments:True +run +ran to the end +7\.00 GiB", text)
    assert re.search(r"max_split_size_mb:64 +run +failed in .* 9\.00 GiB", text)
    assert re.search(r"max_split_size_mb:256 +replay +passes", text)
    assert "not run, beyond the limits of number and time: roundup_power2_divisions:16" in text
    assert " By " not in printed(probe_report(results.OOM))


def test_nothing_measured_is_two_lines_and_what_is_missing_a_third() -> None:
    assert printed(probe_report(results.BROKEN, title="gpt-tiny")).splitlines() == [
        "gpt-tiny · rank 0 of 1 · virtual",
        "NOT MEASURED (import): No module named 'tinytrain.data'",
        "What to do: name the checkout that holds it with --repo, or install the package where oomscope is",
    ]
    crashed = replace(results.BROKEN, failure=replace(results.BROKEN.failure, kind="crash", message="signal 11"))
    assert printed(probe_report(crashed)).splitlines()[1:] == ["NOT MEASURED (crash): signal 11"]
    assert printed(probe_summary(results.BROKEN)).splitlines()[1].startswith("NOT MEASURED (import)")


@pytest.mark.parametrize("said", ["invalid device ordinal", "requested gpu: [0, 1] But your machine only has: [0]"])
def test_a_program_that_needs_more_cards_gets_the_option_for_them(said: str) -> None:
    failed = replace(results.BROKEN, failure=replace(results.BROKEN.failure, kind="exit", message=said))
    (*_, advice) = printed(probe_report(failed)).splitlines()
    assert "--devices N" in advice
    assert "--world-size N" in advice
    assert "What to do" not in printed(probe_report(replace(failed, backend="cuda")))


def test_a_limit_is_named_beside_the_card_that_it_makes_smaller() -> None:
    whole = replace(results.FITS, limit_bytes=CARDS["h100-80gb"].total_bytes)
    assert "limited" not in printed(probe_summary(whole)).splitlines()[0]
    real = replace(results.FITS, backend="cuda")
    assert "limited" not in printed(probe_summary(real)).splitlines()[0]
