"""What whole runs under other settings make of a verdict, and which cure is preferred."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.judge.confirmed import confirmed, in_order_of_preference, is_tight
from oomscope.snapshot.verdict_types import FixTried, Verdict
from oomscope.units import GiB, MiB
from tests.unit.snapshot import cases
from tests.unit.snapshot.cases import fragmented

CARD = GiB
EXPANDABLE, SPLIT = "expandable_segments:True", "roundup_power2_divisions:8"


def run(name: str, margin_bytes: int, **facts) -> FixTried:
    ending = {"survives": margin_bytes >= 0, "failed_in": "step" if margin_bytes < 0 else ""}
    return FixTried(
        name=name,
        conf=name,
        how="run",
        is_tight=margin_bytes >= 0 and is_tight(margin_bytes, CARD),
        peak_reserved_bytes=CARD - margin_bytes,
        margin_bytes=margin_bytes,
        **(ending | facts),
    )


def replayed() -> Verdict:
    verdict = cases.verdict_on(fragmented())
    assert verdict.cured_by[0] == EXPANDABLE
    assert SPLIT not in verdict.cured_by
    return verdict


def judged(*runs: FixTried, **facts) -> Verdict:
    return confirmed(replayed(), runs, **facts)


def test_only_what_ran_to_the_end_is_a_cure():
    verdict = judged(run(EXPANDABLE, -MiB, failed_in="optimizer of iteration 3"), run(SPLIT, 100 * MiB))
    assert verdict.cured_by == (SPLIT,)
    assert verdict.confirmed
    assert not verdict.uncured
    assert verdict.headline.endswith(f"A second run went to the end under {SPLIT} with 100.00 MiB to spare")


def test_a_run_takes_the_place_of_the_replay_of_its_setting_and_says_where_they_differ():
    before = replayed()
    verdict = judged(run(EXPANDABLE, -MiB), run(SPLIT, 100 * MiB), run("roundup_power2_divisions:16", -MiB))
    names = [row.name for row in verdict.tried]
    assert names[0] == "as recorded"
    assert sorted(names) == sorted({*names})
    assert set(names) == {row.name for row in before.tried} | {"roundup_power2_divisions:16"}
    rows = {row.name: row for row in verdict.tried}
    assert rows[EXPANDABLE].note == "its replay passes"
    assert rows[SPLIT].note == "its replay fails"
    assert rows["roundup_power2_divisions:16"].note == ""
    assert {row.how for row in verdict.tried if row.name not in (EXPANDABLE, SPLIT)} == {"replayed", "run"}


def test_where_every_run_fails_the_verdict_is_uncured_whatever_replays_say():
    verdict = judged(run(EXPANDABLE, -MiB), run(SPLIT, -MiB), untried=("max_split_size_mb:256",))
    assert (verdict.cured_by, verdict.uncured) == ((), True)
    assert verdict.untried == ("max_split_size_mb:256",)
    assert verdict.headline.endswith("Further runs failed under each of the 2 settings tried")
    one = judged(run(EXPANDABLE, -MiB))
    assert one.headline.endswith("A second run failed under the one setting tried")
    unclear = judged(run(EXPANDABLE, 0, survives=False), run(SPLIT, -MiB))
    assert unclear.headline.endswith("No cure is shown by further runs under the 2 settings tried")


def test_a_tight_cure_is_called_tight_and_a_roomy_one_preferred():
    verdict = judged(run(EXPANDABLE, MiB), run(SPLIT, 100 * MiB))
    assert verdict.cured_by == (SPLIT, EXPANDABLE)
    assert verdict.preferred.name == SPLIT
    alone = judged(run(EXPANDABLE, MiB))
    assert alone.headline.endswith(f"A second run went to the end under {EXPANDABLE} with only 1.00 MiB to spare")


@given(margins=st.lists(st.integers(-CARD, CARD), max_size=12))
def test_preference(margins: list[int]):
    rows = [run(f"setting {number}", margin) for number, margin in enumerate(margins)]
    order = in_order_of_preference(rows)
    assert sorted(map(rows.index, order)) == [number for number, margin in enumerate(margins) if margin >= 0]
    assert [row.is_tight for row in order] == sorted(row.is_tight for row in order)
    roomy = [rows.index(row) for row in order if not row.is_tight]
    assert roomy == sorted(roomy)
    tight = [row for row in order if row.is_tight]
    for earlier, later in itertools.pairwise(tight):
        assert later.margin_bytes < 2 * earlier.margin_bytes or earlier.margin_bytes == later.margin_bytes == 0
        assert later.margin_bytes < earlier.margin_bytes or rows.index(earlier) < rows.index(later)
