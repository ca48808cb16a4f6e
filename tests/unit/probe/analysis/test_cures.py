"""Whole runs under other settings: which are run, in which order, within which limits, and what each says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.allocator.alloc_conf import EXPANDABLE, merged
from oomscope.probe.analysis.cures import (
    SECONDS,
    SECONDS_IF_CURED,
    first_candidates,
    further_candidates,
    row_of,
    try_each,
)
from oomscope.probe.measurement import AllocatorStats, DeviceBudget, Ending, FailedAllocation, Measurement
from oomscope.probe.result import Failure
from oomscope.snapshot.replay.fixes import Rules
from oomscope.snapshot.trace import Action, Frame, Moment, Snapshot
from oomscope.snapshot.verdict_types import FixTried
from oomscope.units import GiB, MiB
from tests.trace_builder import TraceBuilder

OPTIMIZER = Moment("optimizer", 1, -1)


def measured(peak: int, conf: str = "", **stats: int) -> Measurement:
    """Return a run that reserved ``peak`` bytes on a card of 10 GiB."""
    names = (f"{name}_bytes_peak" for name in ("allocated", "active", "requested"))
    known = dict.fromkeys((*names, "requested_bytes_current", "allocated_bytes_current"), peak)
    return Measurement(
        snapshot=Snapshot(segments=(), traces=(TraceBuilder().build(),)),
        device=DeviceBudget(gpu="l4", limit_bytes=10 * GiB, non_torch_bytes=GiB, other_process_bytes=0),
        stats=AllocatorStats(reserved_bytes_peak=peak, **known, **stats),
        allocator_conf=conf,
    )


BEFORE = measured(9 * GiB)


def refused(requested: int, free: int, conf: str) -> Ending:
    failed = FailedAllocation(requested_bytes=requested, message="no", moment=OPTIMIZER, device_free_bytes=free)
    return Ending(measurement=measured(9 * GiB, conf), out_of_memory=failed)


def split(size: int) -> str:
    return f"max_split_size_mb:{size}"


def asking(*sizes: int, refused: int = 0, thread: bool = False, conf: str = "") -> Measurement:
    """Return a run that asked for ``sizes`` in MiB, and was ``refused`` one then."""
    stack = (Frame("/usr/lib/python3.12/threading.py", 1, "_bootstrap"),) if thread else ()
    builder = TraceBuilder()
    for place, size in enumerate(sizes):
        builder.event(Action.ALLOC, (place + 1) * GiB, size * MiB, stack=stack)
    if refused:
        builder.event(Action.OOM, 0, refused * MiB, stack=stack)
    return replace(measured(8 * GiB, conf), snapshot=Snapshot(segments=(), traces=(builder.build(),)))


@pytest.mark.parametrize(
    ("run", "before", "cures"),
    [
        (asking(8, 9, 100, 7), asking(8, 9, refused=100), True),
        (asking(8, 9, 20, 7), asking(8, 9, refused=100), False),
        (asking(8, 7, 100, 7), asking(8, 9, refused=100), False),
        (asking(8, 9), asking(8, 9, refused=100), False),
        (asking(8, 100, 9), asking(9, 8, refused=100, thread=True), True),
        (asking(8, 9, 100), asking(8, 9, refused=104, conf="roundup_power2_divisions:8"), True),
        (replace(asking(8, 9), truncated=True), asking(8, 9, refused=100), True),
        (replace(asking(8, 9), rank=1), replace(asking(8, 9, refused=100), rank=0), True),
    ],
    ids=["same", "smaller request", "other before", "fewer", "threads", "rounded", "ring wrapped", "other rank"],
)
def test_a_run_that_asks_for_other_sizes_shows_no_cure(run: Measurement, before: Measurement, cures: bool):
    row = row_of("x", "x", Ending(measurement=replace(run, allocator_conf="x")), before)
    assert row.survives is cures
    assert ("or differ in each run" in row.note) is not cures


def test_a_run_that_ends_is_a_row_with_what_it_left():
    row = row_of("x", "x", Ending(measurement=measured(8 * GiB, "x")), BEFORE)
    assert (row.how, row.survives, row.is_tight) == ("run", True, False)
    assert (row.peak_reserved_bytes, row.margin_bytes) == (8 * GiB, GiB)
    tight = row_of("x", "x", Ending(measurement=measured(9 * GiB - MiB, "x", num_alloc_retries=3)), BEFORE)
    assert (tight.survives, tight.is_tight, tight.margin_bytes, tight.retries) == (True, True, MiB, 3)


@pytest.mark.parametrize(
    ("conf", "requested", "free", "margin"),
    [
        (split(64), 100, 30, 30 - 100),
        (EXPANDABLE, 100, 30, 30 - 100),
        (split(64), 2, 19, -1),
        (EXPANDABLE, 101, 19, 19 - 120),
    ],
    ids=["segments", "pages", "a small request takes 20 MiB", "pages are whole"],
)
def test_a_run_that_fails_says_where_and_what_was_lacking(conf: str, requested: int, free: int, margin: int):
    row = row_of(conf, conf, refused(requested * MiB, free * MiB, conf), BEFORE)
    assert (row.survives, row.failed_in, row.margin_bytes) == (False, "optimizer of iteration 1", margin * MiB)


@pytest.mark.parametrize(
    ("ending", "note"),
    [
        (None, "its process ended without a result"),
        (Ending(measurement=None, failure=Failure(kind="step", message="RuntimeError: no")), "RuntimeError: no"),
        (Ending(measurement=measured(GiB, "own")), "the program set the allocator's configuration itself, to own"),
        (Ending(measurement=measured(GiB, "x", num_ooms=1)), "an allocation failed there too"),
    ],
)
def test_a_run_without_an_answer_is_no_cure(ending: Ending | None, note: str):
    row = row_of("x", "x", ending, BEFORE)
    assert (row.survives, row.margin_bytes) == (False, 0)
    assert note in row.note


ROOMY = FixTried(name="", conf="", survives=True, peak_reserved_bytes=0, margin_bytes=GiB)
TIGHT, FAILS = replace(ROOMY, is_tight=True), replace(ROOMY, survives=False)


class Program:
    """A program whose runs take ``seconds`` each and end as ``endings`` say, by the setting."""

    def __init__(self, endings: dict[str, FixTried], seconds: float = 0.1) -> None:
        self.endings, self.seconds, self.now = endings, seconds, 100.0
        self.told: list[int] = []

    def run(self, name: str) -> FixTried:
        self.now += self.seconds
        return replace(self.endings.get(name, FAILS), name=name)

    def tried(self, *first: str, further: tuple[str, ...] = ()) -> tuple[list[str], tuple[str, ...]]:
        rows, untried = try_each(self.run, first, further, announce=self.told.append, clock=lambda: self.now)
        assert self.told == list(range(len(rows)))
        return [row.name for row in rows], untried


def test_further_settings_are_run_until_one_leaves_room():
    names = tuple(map(split, range(30, 36)))
    program = Program({split(31): TIGHT, split(33): ROOMY})
    assert program.tried(split(64), split(128), further=names) == ([split(64), split(128), *names[:4]], ())
    assert Program({split(64): ROOMY}).tried(split(64), split(128), further=names)[0][-1] == split(128)


def test_no_run_begins_that_is_expected_to_end_too_late():
    names = tuple(map(split, range(30, 40)))
    assert Program({}, seconds=SECONDS / 3).tried(*names)[0] == list(names[:3])
    assert Program({}, seconds=2 * SECONDS).tried(*names)[1] == names[1:]
    cured = Program({split(30): ROOMY}, seconds=SECONDS_IF_CURED / 2)
    assert cured.tried(*names, further=(split(300),)) == (list(names[:2]), names[2:])


@given(endings=st.lists(st.sampled_from([ROOMY, TIGHT, FAILS]), max_size=20), first=st.integers(0, 20))
def test_every_setting_is_run_left_out_or_not_needed(endings: list[FixTried], first: int):
    names = [split(30 + number) for number in range(len(endings))]
    ran, untried = Program(dict(zip(names, endings, strict=True))).tried(*names[:first], further=tuple(names[first:]))
    assert ran == names[: len(ran)]
    left = names[len(ran) :]
    is_cured = ROOMY in endings[: len(ran)]
    assert untried == (tuple(name for name in left if name in names[:first]) if is_cured else tuple(left))


def rules(conf: str = "", torch_version: str = "2.15") -> Rules:
    return Rules(conf=conf, torch_version=torch_version)


def further(
    conf: str = "",
    *,
    replayed: tuple[str, ...] = (),
    largest: int = 4 * GiB,
    has_fraction: bool = False,
    torch: str = "2.15",
) -> list[str]:
    known, first = rules(conf, torch), first_candidates(rules(conf, torch), replayed)
    return list(further_candidates(known, first, largest_request_bytes=largest, has_fraction=has_fraction))


def test_what_is_in_force_already_is_no_candidate():
    assert first_candidates(rules(EXPANDABLE), ("max_split_size_mb:64",)) == ("max_split_size_mb:64",)
    assert "expandable_segments:True,large_segment_size_mb:12" in further(EXPANDABLE)
    assert "expandable_segments:True,large_segment_size_mb:12" not in further(f"{EXPANDABLE},large_segment_size_mb:12")


def test_a_setting_whose_replay_passes_is_run_once():
    assert split(64) in further()
    assert split(64) not in further(replayed=(split(64),))
    assert split(64) not in further(replayed=(f"expandable_segments:False,{split(64)}",)), "by another name"


def test_a_split_size_that_no_request_reaches_is_left_out():
    assert {"max_split_size_mb:20", "max_split_size_mb:64"} < set(further(largest=100 * MiB))
    assert not {"max_split_size_mb:256", "max_split_size_mb:1024"} & set(further(largest=100 * MiB))


@pytest.mark.parametrize("torch", ["2.11", "2.13", "2.15"])
@pytest.mark.parametrize("conf", ["", EXPANDABLE, "max_split_size_mb:64", "roundup_power2_divisions:[256:1,512:2]"])
def test_every_candidate_is_another_configuration_that_torch_knows(conf: str, torch: str):
    names = [*first_candidates(rules(conf, torch), ()), *further(conf, torch=torch, has_fraction=True)]
    known = [rules(merged(conf, name), torch).settings() for name in names]
    assert rules(conf, torch).settings() not in known
    assert len(set(map(repr, known))) == len(names)
