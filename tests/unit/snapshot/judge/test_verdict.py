"""What is said of a constructed run of each kind, see ``cases``, and of runs at random."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings

from oomscope.snapshot.judge.headline import headline_of
from oomscope.snapshot.judge.verdict import FailedElsewhere, ending_failure
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import GiB, KiB, MiB
from tests.unit.snapshot import cases
from tests.unit.snapshot.cases import (
    beside_others,
    ended_by,
    fragmented,
    freed_by_the_last_wait,
    granularity_band,
    leaking,
    too_much,
)
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.replay.test_replay import STEPS, run


def verdict_on(machine: Machine, **facts) -> Verdict:
    verdict = cases.verdict_on(machine, **facts)
    assert "\n" not in verdict.headline
    return verdict


def gaps(verdict: Verdict) -> dict[str, int]:
    assert sum(gap.bytes for gap in verdict.gaps) == verdict.available_bytes - verdict.live_requested_bytes
    return {gap.reason: gap.bytes for gap in verdict.gaps}


def test_capacity():
    verdict = verdict_on(too_much())
    assert verdict.kind == "capacity"
    assert not verdict.tags
    assert not verdict.cured_by
    assert not verdict.uncured
    assert verdict.live_requested_bytes == 1000 * MiB
    assert verdict.categories == {"parameter": 1000 * MiB}
    assert verdict.packing_lower_bound_bytes == 1100 * MiB
    assert gaps(verdict) == {"free_device": 24 * MiB}
    assert not any(fix.survives for fix in verdict.tried)
    assert verdict.headline.endswith("76.00 MiB short")
    whole = verdict_on(too_much(), demand_after=2 * GiB)
    assert whole.headline.endswith("76.00 MiB short here, 1.00 GiB short for the whole run")
    assert verdict_on(too_much(), demand_after=1100 * MiB).headline == verdict.headline


def test_fragmentation_that_expandable_segments_cure():
    machine = fragmented()
    assert machine.failure is not None
    verdict = verdict_on(machine)
    assert verdict.kind == "fragmentation"
    assert verdict.cured_by[0] == "expandable_segments:True"
    assert not verdict.uncured
    assert gaps(verdict) == {"split_remainder": 680 * MiB, "free_device": 224 * MiB}
    recorded, cure = verdict.tried[:2]
    assert not recorded.survives
    assert recorded.failed_event == verdict.event == machine.failure.event
    assert cure.survives
    assert 0 <= cure.margin_bytes == GiB - cure.peak_reserved_bytes
    assert "pass to the end of the recording under expandable_segments:True" in verdict.headline
    assert "904.00 MiB were free but unusable" in verdict.headline
    assert sum(gap.bytes for gap in verdict.gaps) == 904 * MiB


def test_fragmentation_that_nothing_cures():
    verdict = verdict_on(granularity_band())
    assert verdict.kind == "fragmentation"
    assert verdict.uncured
    assert verdict.cured_by == ()
    assert gaps(verdict) == {"granularity": 19 * MiB}
    assert "20.00 MiB for 2.00 MiB" in verdict.gaps[0].text
    assert "It fails under every setting tried" in verdict.headline


def test_free_blocks_of_another_stream_do_not_serve():
    machine = Machine(220 * MiB)
    first = machine.alloc(100 * MiB, stream=5)
    second = machine.alloc(100 * MiB, stream=5)
    for address in (first, second):
        machine.free(address)
    machine.alloc(20 * MiB, stream=5)
    machine.alloc(20 * MiB, stream=5)
    third = machine.alloc(60 * MiB, stream=5)
    machine.alloc(20 * MiB, stream=5)
    machine.free(third)
    machine.alloc(60 * MiB, stream=0)
    verdict = verdict_on(machine)
    assert verdict.kind == "fragmentation"
    assert gaps(verdict)["cached_other_stream"] == 140 * MiB


def test_free_blocks_of_the_other_pool_do_not_serve():
    machine = Machine(24 * MiB)
    small = [machine.alloc(512 * KiB) for _ in range(48)]
    for index, address in enumerate(small):
        if index % 4:
            machine.free(address)
    machine.alloc(2 * MiB)
    verdict = verdict_on(machine)
    assert verdict.kind == "fragmentation"
    assert gaps(verdict) == {"cached_other_pool": 18 * MiB}


def test_blocks_pending_on_a_stream():
    """At the failure itself the allocator has waited for every stream, so such gaps are seen under a fraction's card
    only where the copy was made before that; here the copy is made by hand."""
    machine = Machine(GiB)
    block = machine.alloc(600 * MiB)
    machine.use_on(block, 7)
    machine.free(block)
    pending = machine.segments()
    machine.alloc(2 * GiB)
    machine.failure = replace(machine.failure, segments=pending, requested_bytes=500 * MiB)
    verdict = verdict_on(machine)
    assert gaps(verdict) == {"pending_free": 600 * MiB, "free_device": 424 * MiB}


def test_spurious_the_identical_request_passes_when_repeated():
    """What the last wait frees inside a live segment serves nobody: the pool is not searched again."""
    verdict = verdict_on(freed_by_the_last_wait())
    assert verdict.kind == "fragmentation"
    assert "spurious" in verdict.tags
    assert gaps(verdict)["cached_usable"] == 180 * MiB
    assert "passes when repeated" in verdict.headline


def test_foreign_it_would_have_fitted_alone():
    verdict = verdict_on(beside_others())
    assert verdict.kind == "capacity"
    assert verdict.tags == ("foreign",)
    assert verdict.available_bytes == 524 * MiB


def test_leak_with_the_line_that_grows():
    verdict = verdict_on(leaking())
    assert verdict.kind == "capacity"
    assert verdict.tags == ("leak",)
    assert "grows 100.00 MiB an iteration, mostly from /user/train.py:42 step" in verdict.headline
    assert (verdict.leak.bytes_per_iteration, verdict.leak.iterations, verdict.leak.site.line) == (100 * MiB, 9, 42)
    site = replace(verdict.leak.site, file="/home/me/project/src/train.py")
    assert "mostly from …/project/src/train.py:42 step" in headline_of(
        replace(verdict, leak=replace(verdict.leak, site=site)), requested_bytes=50 * MiB
    )


def test_a_leak_that_only_the_run_without_a_limit_shows():
    whole = verdict_on(leaking(GiB, per_iteration=10 * MiB, iterations=5)).leak
    verdict = verdict_on(fragmented(), leak_after=whole)
    assert (verdict.leak, verdict.tags) == (whole, ("leak",))
    assert "requested memory grows 10.00 MiB an iteration" in verdict.headline


@pytest.mark.parametrize(("per_iteration", "iterations"), [(100 * MiB, 3), (1000, 20)])
def test_no_leak_without_three_whole_iterations_or_a_mebibyte_each(per_iteration, iterations):
    assert verdict_on(leaking(per_iteration=per_iteration, iterations=iterations)).tags == ()


def test_later_capacity_nothing_cures_a_run_that_goes_on_to_need_more():
    verdict = verdict_on(fragmented(), demand_after=2 * GiB)
    assert verdict.kind == "fragmentation"
    assert (verdict.cured_by, verdict.uncured) == ((), False)
    assert verdict.gets_past.name == "expandable_segments:True"
    assert "This request passes under expandable_segments:True" in verdict.headline
    assert verdict.tags == ("later: capacity",)
    assert "the run later needs 2.00 GiB" in verdict.headline


def test_headroom_compares_what_is_live_and_reserved_at_one_moment():
    machine = fragmented(total=2 * GiB)
    verdict = verdict_on(machine)
    assert (verdict.live_requested_bytes, verdict.reserved_bytes) == (800 * MiB, 800 * MiB)
    assert verdict.headline.startswith(
        "Peak 800.00 MiB requested, 800.00 MiB reserved then; at most 1.07 GiB reserved, with 420.00 MiB requested, "
        "948.00 MiB to spare of 2.00 GiB. 680.00 MiB of the 1.07 GiB is overhead; expandable_segments:True would"
    )


def test_headroom_names_no_setting_that_reserves_more():
    machine = Machine(GiB)
    machine.alloc(3 * MiB)
    machine.alloc(7 * MiB, stream=1)
    verdict = verdict_on(machine)
    more = [fix for fix in verdict.tried[1:] if fix.survives]
    assert all(fix.peak_reserved_bytes >= verdict.reserved_bytes for fix in more)
    assert more
    assert "would reserve" not in verdict.headline


@pytest.mark.parametrize(("failed_in", "kind"), [("outside", "outside"), ("host", "host"), ("program", "outside")])
def test_failures_elsewhere_are_not_replayed(failed_in, kind):
    verdict = verdict_on(ended_by(FailedElsewhere(failed_in=failed_in, message="the error's own words")))
    assert verdict.kind == kind
    assert verdict.live_requested_bytes == verdict.wanted_bytes == 100 * MiB
    assert verdict.requested_bytes is verdict.event is None
    assert verdict.tried == verdict.gaps == ()
    assert "the error's own words" in verdict.headline


def test_no_cure_is_claimed_where_the_replay_does_not_reproduce_the_failure():
    machine = fragmented()
    machine.failure = replace(machine.failure, requested_bytes=MiB)
    verdict = verdict_on(machine)
    assert verdict.kind == "fragmentation"
    assert verdict.cured_by == ()
    assert not verdict.uncured
    assert "does not reproduce" in verdict.headline


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_every_failure_is_judged_and_its_numbers_add_up(steps):
    machine = Machine(100 * MiB, non_torch=3 * MiB)
    run(machine, steps)
    verdict = verdict_on(machine)
    assert sum(verdict.categories.values()) == verdict.live_requested_bytes
    if machine.failure is None:
        assert verdict.kind == "headroom"
        return
    too_much = verdict.live_requested_bytes + verdict.requested_bytes > verdict.available_bytes
    assert verdict.kind == ("capacity" if too_much else "fragmentation")
    assert sum(gaps(verdict).values()) >= 0
    assert verdict.uncured == (verdict.kind == "fragmentation" and not verdict.cured_by)
    if verdict.kind == "capacity":
        assert not any(fix.survives for fix in verdict.tried)


@pytest.mark.parametrize("name", cases.CASES)
def test_a_headline_is_at_most_two_sentences_of_25_words(name: str) -> None:
    said = re.sub(r'"[^"]*"', "quoted", cases.CASES[name].verdict().headline)
    found = re.split(r"\. (?=[A-Z0-9])", said)
    assert len(found) <= 2
    assert all(len(sentence.split()) <= 25 for sentence in found)


def test_a_failure_that_the_program_survived_did_not_end_it() -> None:
    machine = Machine(150 * MiB)
    machine.alloc(200 * MiB)
    assert ending_failure(machine.trace()).requested_bytes == 200 * MiB
    machine.alloc(100 * MiB)
    assert ending_failure(machine.trace()) is None
    machine.alloc(180 * MiB)
    assert ending_failure(machine.trace()).requested_bytes == 180 * MiB
