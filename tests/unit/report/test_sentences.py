from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.probe.result import Failure
from oomscope.report import sentences, verdict_text
from oomscope.report.commands import probe
from oomscope.snapshot.verdict_types import Gap, LeakSuspect
from oomscope.units import GiB, MiB
from tests.unit.report import results


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (results.FITS, "FITS, 2.00 GiB to spare (22.2 % of what the process may use)"),
        (
            results.OOM,
            ("OUT OF MEMORY asking for 1.50 GiB in loss of iteration 1, at …/src/tinytrain/loss.py:14 cross_entropy"),
        ),
        (results.HOST, "OUT OF HOST MEMORY in iteration 1"),
        (results.BROKEN, "NOT MEASURED (import): No module named 'tinytrain.data'"),
    ],
)
def test_status(result, text: str) -> None:
    assert probe.status_text(result) == text


def test_a_program_that_gives_no_exception_is_shown_with_the_last_line_that_it_printed() -> None:
    """As argparse ends one; an exception is in the message already."""
    ended = "the program ended before its first step (it ended with status 2)"
    detail = "usage: t.py [-h]\nt.py: error: unrecognized\x1b --m\n\n"
    failure = Failure(kind="exit", message=ended, detail=detail, is_status_alone=True)
    said = "NOT MEASURED (exit): " + ended
    assert probe.status_text(replace(results.BROKEN, failure=failure)) == f"{said}: t.py: error: unrecognized\\x1b --m"
    assert probe.status_text(replace(results.BROKEN, failure=replace(failure, detail=""))) == said
    raised = replace(failure, message=f"{ended}: ValueError: no", is_status_alone=False)
    assert probe.status_text(replace(results.BROKEN, failure=raised)) == f"{said}: ValueError: no"


def test_live_and_reserved_are_compared_at_one_moment() -> None:
    assert probe.reserved_text(results.FITS) == (
        "7.00 GiB at most, at the peak of requested bytes: 1.00 GiB (14.3 %) of it is overhead"
    )
    later = replace(results.FITS.reserved_peak, event=2000, phase="optimizer", requested_bytes=5 * GiB, microbatch=-1)
    assert probe.reserved_text(replace(results.FITS, reserved_peak=later)) == (
        "7.00 GiB at most, in optimizer of iteration 1, with 5.00 GiB requested: 2.00 GiB (28.6 %) of it is overhead"
    )
    before = replace(results.FITS.reserved_peak, reserved_then_bytes=7 * GiB - 2 * MiB)
    assert probe.reserved_text(replace(results.FITS, reserved_peak=before)) == (
        "7.00 GiB at most; 1022.00 MiB (14.3 %) of the 7.00 GiB at the peak of requested bytes is overhead"
    )
    assert probe.reserved_text(results.BROKEN) is None


def test_nothing_is_claimed_of_a_card_that_was_not_measured() -> None:
    assert probe.device_text(results.BROKEN) == "virtual"
    assert probe.device_text(results.FITS) == (
        "virtual h100-80gb, 10.00 GiB in all, 1.00 GiB outside torch, 9.00 GiB for this process"
    )
    assert sentences.known_size(None) == "-"
    untouched = replace(results.FITS, peak=None)
    assert probe.status_text(untouched) == "FITS: it allocated nothing on the device"


def test_demand_names_where_the_whole_run_peaks() -> None:
    assert probe.demand_text(results.OOM) is None
    known = replace(results.OOM, demand_bytes=8 * GiB)
    assert probe.demand_text(known) == "8.00 GiB requested by a second run, without a limit"
    lacking = replace(known, available_bytes=6 * GiB)
    assert probe.demand_text(lacking) == (
        "8.00 GiB requested by a second run, without a limit, 2.00 GiB more than this process may use"
    )
    placed = probe.demand_text(replace(known, demand_peak=results.PEAK))
    assert ", in backward of iteration 1, at" in placed


def test_kind_with_tags() -> None:
    both = replace(results.FRAGMENTATION, uncured=True, tags=("leak", "later: capacity"))
    assert verdict_text.kind_text(both) == "fragmentation, uncured (leak; later: capacity)"


def test_advice_names_what_was_tried() -> None:
    assert "expandable_segments:True" in verdict_text.advice_text(results.FRAGMENTATION)
    later = replace(results.FRAGMENTATION, cured_by=(), tags=("later: capacity",))
    assert "avoids this failure, but" in verdict_text.advice_text(later)
    assert "reduce live memory" in verdict_text.advice_text(replace(results.FRAGMENTATION, cured_by=(), uncured=True))
    uncured = replace(results.FRAGMENTATION, cured_by=(), uncured=True, event=5)
    known = verdict_text.advice_text(uncured, less="free at least 1 B")
    assert known == "no allocator setting tried serves these allocations; free at least 1 B"
    later = replace(uncured.tried[1], survives=False, failed_event=9)
    put_off = verdict_text.advice_text(replace(uncured, tried=(uncured.tried[0], later)))
    assert put_off == f"{later.name} only delays the failure; reduce live memory"
    assert "no setting is shown to help" in verdict_text.advice_text(replace(results.FRAGMENTATION, cured_by=()))
    undecided = replace(results.FRAGMENTATION, cured_by=(), tags=("undecided",))
    assert "record from the start" in verdict_text.advice_text(undecided)
    assert "peak demand exceeds the card" in verdict_text.advice_text(results.CAPACITY.verdict)
    foreign = verdict_text.advice_text(replace(results.CAPACITY.verdict, tags=("foreign",)))
    assert foreign.startswith("end the other processes on the card")
    assert verdict_text.advice_text(results.FITS.verdict) is None


def test_advice_on_a_recording_that_ends_at_its_failure_promises_nothing_beyond() -> None:
    advice = verdict_text.advice_text(replace(results.FRAGMENTATION, ends_at_failure=True))
    assert advice is not None
    assert advice.startswith("try PYTORCH_ALLOC_CONF=expandable_segments:True: the recorded allocations pass under it")
    assert "only a whole run tells (oomscope probe)" in advice
    assert verdict_text.advice_text(results.FRAGMENTATION).startswith("set PYTORCH_ALLOC_CONF=")


def test_advice_on_a_cure_that_was_run_says_what_it_leaves() -> None:
    cured = results.CONFIRMED.verdict
    assert verdict_text.advice_text(cured) == (
        "set PYTORCH_ALLOC_CONF=expandable_segments:True: the whole program ran under it, with 2.00 GiB to spare"
    )
    row = replace(cured.tried[1], margin_bytes=12 * MiB, is_tight=True)
    tight = verdict_text.advice_text(replace(cured, tried=(cured.tried[0], row)))
    assert "with 12.00 MiB to spare, which is tight; reduce live memory" in tight


def test_how_each_setting_came_out() -> None:
    recorded, run, failed, replay = results.CONFIRMED.verdict.tried
    assert verdict_text.fix_outcome(recorded) == "fails at event 99"
    assert verdict_text.fix_outcome(run) == "ran to the end"
    assert verdict_text.fix_outcome(replace(run, is_tight=True)) == "ran to the end, tight"
    assert verdict_text.fix_outcome(failed) == "failed in optimizer of iteration 2"
    assert verdict_text.fix_outcome(replace(failed, failed_in="")) == "failed"
    assert verdict_text.fix_outcome(replay) == "passes"


def test_where_private_pools_hold_most_of_what_is_free_advice_is_about_them() -> None:
    split, free = results.FRAGMENTATION.gaps
    pools = Gap(reason="private_pool", bytes=split.bytes + 1, text="free blocks of private pools")
    held = replace(results.FRAGMENTATION, cured_by=(), uncured=True, gaps=(split, pools, free))
    advice = verdict_text.advice_text(held)
    assert advice is not None
    for piece in ("no allocator setting", "fewer private pools", "MemPool", "torch.cuda.graph_pool_handle()"):
        assert piece in advice
    assert "must be live" not in advice
    unrepeated = verdict_text.advice_text(replace(held, uncured=False))
    assert unrepeated is not None
    assert "no setting is shown to help; use fewer private pools" in unrepeated
    smaller = replace(held, gaps=(split, replace(pools, bytes=split.bytes - 1), free))
    assert "private pools" not in (verdict_text.advice_text(smaller) or "")
    assert "private pools" not in (
        verdict_text.advice_text(replace(held, cured_by=("expandable_segments:True",))) or ""
    )


def test_advice_on_a_leak_names_line_rate_and_remedy_and_how_long_it_can_wait() -> None:
    leak = LeakSuspect(bytes_per_iteration=GiB // 2, iterations=4, site=results.LOSS)
    advice = verdict_text.advice_text(replace(results.FITS.verdict, leak=leak, tags=("leak",)))
    for piece in (
        "loss.py:14 cross_entropy",
        "512.00 MiB more stay alive after each iteration",
        ".item()",
        ".detach()",
    ):
        assert piece in advice
    assert advice.endswith("room for about 4 more iterations")
    leaking = replace(results.FITS, verdict=replace(results.FITS.verdict, leak=leak, tags=("leak",)))
    assert probe.status_text(leaking) == (
        "FITS SO FAR, 2.00 GiB to spare, but a leak fills that in about 4 more iterations"
    )
    unknown = verdict_text.advice_text(replace(results.FITS.verdict, leak=leak, tags=("leak",)), has_card=False)
    assert "room for" not in unknown
    failed = verdict_text.advice_text(replace(results.CAPACITY.verdict, leak=replace(leak, site=None), tags=("leak",)))
    assert failed.startswith("512.00 MiB more stay alive after each iteration: look for")
    assert failed.endswith("reduce live memory (smaller batch, recompute, offload, parallelism)")


def test_the_cost_of_a_step_names_what_is_spent() -> None:
    cost = dict.fromkeys(("activation_offload_s", "optimizer_offload_s", "collectives_s", "bubble_s"), 0.0)
    cost |= {"seconds": 1.5, "recompute_s": 0.25}
    text = probe.cost_text(replace(results.FITS, cost=cost))
    assert text == "about 1.5 s a step (estimated), of which 250 ms recomputed"
    assert probe.cost_text(results.FITS) is None
    assert sentences.slowdown_text(0.0315) == "+3.1 %"
    assert sentences.slowdown_text(None) == "-"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (probe.format_flops(0), "0 FLOP"),
        (probe.format_flops(1_500_000), "1.5 MFLOP"),
        (probe.format_flops(3 * 10**18), "3,000 PFLOP"),
        (sentences.format_seconds(0.0456), "45.6 ms"),
        (sentences.format_seconds(1.234), "1.23 s"),
        (sentences.format_seconds(98765), "98,765 s"),
        (sentences.duration_text(4.21), "4.2 s"),
        (sentences.duration_text(200), "3 min 20 s"),
        (sentences.duration_text(7500), "2 h 5 min"),
        (sentences.date_text("2025-01-06T19:24:00+00:00"), "2025-01-06 19:24 UTC"),
        (sentences.date_text("2025-01-06T19:24:00+05:30"), "2025-01-06 19:24 +05:30"),
        (sentences.date_text(""), ""),
        (sentences.count(1, "probe"), "1 probe"),
        (sentences.count(1200, "probe"), "1,200 probes"),
        (sentences.percent(1, 0), "-"),
        (sentences.moment_text(-1, "init"), "init"),
        (sentences.site_text(None), "an unknown line"),
        (probe.peak_place(replace(results.PEAK, site=None)), "backward of iteration 1"),
        (probe.flops_text(replace(results.FITS, flops={})), None),
        (probe.retries_text(results.FITS), None),
        (probe.retries_text(replace(results.FITS, num_alloc_retries=2)), "the allocator emptied its cache 2 times"),
    ],
)
def test_numbers_dates_and_unknowns(written: str | None, text: str | None) -> None:
    assert written == text
