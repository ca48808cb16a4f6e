"""Whole runs under other settings: their order, their limits, and what each says of its setting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.analysis.confirm import RUNS, SECONDS, SECONDS_IF_CURED, Card, Confirmation, Failed, Ran, confirm
from oomscope.snapshot.replay.fixes import Rules
from oomscope.units import GiB, MiB

CARD = Card(total_bytes=10 * GiB, available_bytes=9 * GiB)
ROOMY = Ran(peak_reserved_bytes=8 * GiB)
TIGHT = Ran(peak_reserved_bytes=9 * GiB - MiB, retries=3)
REFUSED = Ran(
    peak_reserved_bytes=9 * GiB,
    failed=Failed(where="optimizer of iteration 1", requested_bytes=100 * MiB, free_bytes=30 * MiB),
)
BROKEN = Ran(error="RuntimeError: no")


class Program:
    """A program whose runs take ``seconds`` each and end as ``endings`` say, by what a configuration contains."""

    def __init__(self, endings: dict[str, Ran], seconds: float = 0.1) -> None:
        self.endings, self.seconds = endings, seconds
        self.confs: list[str] = []
        self.now = 100.0

    def __call__(self, conf: str) -> Ran:
        self.confs.append(conf)
        self.now += self.seconds
        return self.endings.get(conf, REFUSED)

    def confirm(self, *first: str, further: tuple[str, ...] = (), conf: str = "", **facts) -> Confirmation:
        rules = Rules(conf=conf, torch_version="2.15")
        return confirm(self, first, further, rules=rules, card=CARD, clock=lambda: self.now, **facts)


def split(size: int) -> str:
    return f"max_split_size_mb:{size}"


def test_a_run_that_ends_is_a_row_with_what_it_left():
    row, tight = Program({split(64): ROOMY, split(128): TIGHT}).confirm(split(64), split(128)).rows
    assert (row.how, row.survives, row.is_tight) == ("run", True, False)
    assert (row.peak_reserved_bytes, row.margin_bytes) == (8 * GiB, GiB)
    assert (tight.survives, tight.is_tight, tight.margin_bytes, tight.retries) == (True, True, MiB, 3)


def test_a_run_that_fails_says_where_and_what_was_lacking():
    row, expandable, small = Program({}).confirm(split(64), "expandable_segments:True", "large_segment_size_mb:64").rows
    assert not row.survives
    assert row.failed_in == "optimizer of iteration 1"
    assert row.margin_bytes == (30 - 100) * MiB
    assert expandable.margin_bytes == (30 - 100) * MiB
    assert small.margin_bytes == (30 - 100) * MiB


def test_what_is_lacking_counts_whole_segments_and_pages():
    few = Ran(failed=Failed(where="step", requested_bytes=2 * MiB, free_bytes=19 * MiB))
    odd = Ran(failed=Failed(where="step", requested_bytes=101 * MiB, free_bytes=19 * MiB))
    assert Program({split(64): few}).confirm(split(64)).rows[0].margin_bytes == -MiB
    name = "expandable_segments:True"
    assert Program({name: odd}).confirm(name).rows[0].margin_bytes == (19 - 120) * MiB


def test_a_run_without_an_answer_is_no_cure():
    (row,) = Program({split(64): BROKEN}).confirm(split(64)).rows
    assert (row.survives, row.note, row.margin_bytes) == (False, "RuntimeError: no", 0)


def test_settings_are_added_to_those_of_the_failed_run():
    program = Program({})
    rows = program.confirm("expandable_segments:True", conf="roundup_power2_divisions:8").rows
    assert program.confs == ["roundup_power2_divisions:8,expandable_segments:True"] == [row.conf for row in rows]


def test_further_settings_are_run_until_one_leaves_room():
    names = tuple(map(split, range(30, 36)))
    program = Program({split(31): TIGHT, split(33): ROOMY})
    found = program.confirm(split(64), split(128), further=names)
    assert program.confs == [split(64), split(128), *names[:4]]
    assert found.untried == ()
    assert Program({split(64): ROOMY}).confirm(split(64), split(128), further=names).rows[-1].name == split(128)


def test_at_most_so_many_runs():
    names = tuple(map(split, range(30, 60)))
    found = Program({}).confirm(*names)
    assert len(found.rows) == RUNS
    assert found.untried == names[RUNS:]


def test_no_run_begins_that_is_expected_to_end_too_late():
    names = tuple(map(split, range(30, 40)))
    slow = Program({}, seconds=SECONDS / 3)
    assert [row.name for row in slow.confirm(*names).rows] == list(names[:3])
    assert Program({}, seconds=2 * SECONDS).confirm(*names).untried == names[1:]
    cured = Program({split(30): ROOMY}, seconds=SECONDS_IF_CURED / 2)
    found = cured.confirm(*names, further=(split(300),))
    assert [row.name for row in found.rows] == list(names[:2])
    assert found.untried == names[2:]


def test_progress_counts_the_runs_made():
    told: list[int] = []
    Program({}).confirm(split(64), split(128), announce=told.append)
    assert told == [0, 1]


@given(endings=st.lists(st.sampled_from([ROOMY, TIGHT, REFUSED, BROKEN]), max_size=20), first=st.integers(0, 20))
def test_every_setting_is_run_left_out_or_not_needed(endings: list[Ran], first: int):
    names = [split(30 + number) for number in range(len(endings))]
    program = Program(dict(zip(names, endings, strict=True)))
    found = program.confirm(*names[:first], further=tuple(names[first:]))
    ran = [row.name for row in found.rows]
    assert ran == names[: len(ran)]
    is_cured = any(row.survives and not row.is_tight for row in found.rows)
    left = names[len(ran) :]
    assert found.untried == (tuple(name for name in left if name in names[:first]) if is_cured else tuple(left))
    for row, ending in zip(found.rows, endings, strict=False):
        assert row.survives == (ending in (ROOMY, TIGHT))
