from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.load import LoadedConfig, load_preset
from oomscope.errors import UsageError
from oomscope.probe.job import ProbeJob
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.result import Failure, ProbeResult
from oomscope.probe.tuning.shorthand import offload_overrides, recompute_overrides
from oomscope.probe.tuning.sweep import Axis, SweepRow, sweep, with_front
from oomscope.probe.tuning.variants import Variant, side_by_side
from oomscope.units import Bytes
from tests.unit.probe.played import measured


def load(overrides) -> LoadedConfig:
    return load_preset("gpt-tiny", overrides)


def played(job: ProbeJob, stop: threading.Event) -> ProbeResult:
    return measured(job)


def test_every_combination_is_a_row_in_order() -> None:
    axes = [Axis.parse("data.micro_batch_size=1,2"), Axis.parse("recompute=none,full,selective")]
    grid = sweep(load, axes, probe=played, jobs=2)
    assert [row.values for row in grid.rows] == [(b, r) for b in "12" for r in ("none", "full", "selective")]
    assert {row.variant.outcome for row in grid.rows} == {"fits"}
    assert min(row.slowdown for row in grid.rows) == 0
    assert grid.rows[0].variant.requested_bytes < grid.rows[3].variant.requested_bytes


def test_of_equal_times_only_the_least_memory_is_best() -> None:
    """Microbatches of 1 and 7 take the same time a sequence, but for the last bit of a float."""
    grid = sweep(load, [Axis.parse("data.seq_length=256"), Axis.parse("data.micro_batch_size=1,7")], probe=played)
    assert [row.slowdown for row in grid.rows] == [0, 0]
    assert [row.is_on_front for row in grid.rows] == [True, False]


def test_refused_and_failed_combinations_are_rows() -> None:
    def fails(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        return ProbeResult(backend="virtual", outcome="error", failure=Failure(kind="crash", message="it fell over"))

    axes = [Axis.parse("recompute=none,full"), Axis.parse("offload=layers:2")]
    first, second = sweep(load, axes, probe=fails).rows
    assert (first.variant.outcome, first.variant.message) == ("error", "it fell over")
    assert second.variant.outcome == "refused"
    assert second.variant.message == "cpu_offloading does not work with recompute_granularity full (rule R21)"


def test_a_combination_without_effect_says_so() -> None:
    none, moe = sweep(load, [Axis.parse("recompute=none,moe")], probe=played).rows
    assert none.variant.idle == ""
    assert moe.variant.idle == "recomputing moe does nothing: no layer of this model has it (rule R27)"


def test_an_interrupt_keeps_what_is_there() -> None:
    def interrupt(done, total, values, variant) -> None:
        raise KeyboardInterrupt

    grid = sweep(load, [Axis.parse("data.micro_batch_size=1,2,4")], probe=played, announce=interrupt)
    assert grid.interrupted
    assert [row.variant.outcome for row in grid.rows] == ["fits", "interrupted", "interrupted"]


def test_leaving_early_stops_what_runs() -> None:
    stopped = threading.Event()

    def slow(stop: threading.Event):
        stop.wait(60)
        stopped.set()
        raise StoppedError

    answers = side_by_side([lambda stop: time.monotonic(), slow], 2)
    assert next(answers)[0] == 0
    answers.close()
    assert stopped.is_set()


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("recompute.recompute_modules=[mlp],[mlp,core_attn]", ("[mlp]", "[mlp,core_attn]")),
        ("allocator.conf='a:1,b:2','c:3'", ("'a:1,b:2'", "'c:3'")),
        ("data.seq_length= 1, 2", ("1", "2")),
    ],
)
def test_commas_inside_brackets_and_quotes_part_nothing(word: str, values: tuple[str, ...]) -> None:
    assert Axis.parse(word).values == values


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("recompute", "has no values to vary"),
        ("recompute=mlp,mlp", "twice"),
        ("speed=1,2", "is not a key"),
        ("recompute=sometimes", "no choice 'sometimes'"),
        ("offload=layers:many", "no choice"),
    ],
)
def test_what_cannot_be_varied_is_refused(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Axis.parse(word)


CHOICES = st.lists(
    st.one_of(
        st.sampled_from(["none", "selective", "full", "mlp", "mlp+core_attn"]).map(recompute_overrides),
        st.sampled_from(["none", "layers:1", "optimizer:0.5", "core_attn"]).map(offload_overrides),
    ),
    min_size=1,
    max_size=4,
)


@given(CHOICES)
def test_the_last_choice_is_what_counts(choices) -> None:
    """A choice leaves nothing of an earlier one of its kind."""

    def section(overrides) -> str:
        return overrides[0].partition(".")[0]

    flat = [override for choice in choices for override in choice]
    last = {section(choice): choice for choice in choices}
    alone = [override for choice in last.values() for override in choice]
    one, two = (load_preset("gpt-tiny", overrides, enforce=False).config for overrides in (flat, alone))
    assert one == two


POINTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(0, 5).map(lambda part: part / 4))
    )
)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points: list[tuple[int | None, float | None]]) -> None:
    rows = [
        SweepRow(
            values=(str(number),),
            variant=Variant(overrides=(), outcome="fits", peak=None if live is None else Bytes(requested_bytes=live)),
            slowdown=slowdown,
        )
        for number, (live, slowdown) in enumerate(points)
    ]
    known = [(live, slow) for live, slow in points if live is not None and slow is not None]

    def is_best(live: int | None, slow: float | None) -> bool:
        if live is None or slow is None:
            return False
        return not any(other <= live and time <= slow and (other, time) != (live, slow) for other, time in known)

    assert [row.is_on_front for row in with_front(rows)] == [is_best(*point) for point in points]
