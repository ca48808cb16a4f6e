"""What the last whole iteration tells of the one that failed."""

from __future__ import annotations

import numpy as np
import pytest

from oomscope.report.verdict_text import advice_text
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.rest_of_iteration import rest_of_iteration
from oomscope.snapshot.trace import Category
from oomscope.snapshot.verdict_types import RestOfIteration
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cases import fragmented, verdict_on
from tests.unit.snapshot.machine import Machine

SIZES = (200, 150, 60, 190)


def trained(total: int, *, of_second: tuple[int, ...] = SIZES, kept: int = 0) -> tuple[Machine, int]:
    """Run a first iteration that makes the optimizer's states and keeps a block, and a second one that fails.

    Return the machine and the last event of the first iteration.
    """
    machine = Machine(total * MiB)
    machine.alloc(100 * MiB, category=Category.PARAMETER)
    for address in [machine.alloc(size * MiB) for size in SIZES]:
        machine.free(address)
    machine.alloc(100 * MiB, category=Category.OPTIMIZER_STATE)
    if kept:
        machine.alloc(kept * MiB)
    end = len(machine.trace()) - 1
    for size in of_second:
        if machine.alloc(size * MiB) is None:
            break
    return machine, end


def rest_of(machine: Machine, end: int) -> RestOfIteration | None:
    assert machine.failure is not None
    assert machine.failure.event is not None
    timeline = Timeline.of(machine.trace(), machine.segments())
    table, trace = timeline.lifetimes, timeline.trace
    return rest_of_iteration(timeline, np.array([end]), trace.category[table.born], machine.failure.event)


def test_the_rest_needs_what_the_last_iteration_held_on_top_of_states_made_since():
    needed = (100 + 100 + sum(SIZES)) * MiB
    rest = rest_of(*trained(710))
    assert rest is not None
    assert rest.needed_bytes == needed
    machine, _ = trained(710)
    live = Timeline.of(machine.trace(), machine.segments()).held_bytes_at(machine.failure.event)
    assert rest.needed_bytes > live


def test_what_the_last_iteration_left_may_be_freed():
    without, kept = rest_of(*trained(710)), rest_of(*trained(710, kept=8))
    assert without is not None
    assert kept is not None
    assert kept.needed_bytes == without.needed_bytes, "no more than what must have been needed"


@pytest.mark.parametrize("of_second", [(200, 151, 400), (150, 200, 400), (201, 400)])
def test_an_iteration_of_other_sizes_shows_nothing(of_second):
    assert rest_of(*trained(710, of_second=of_second)) is None


def test_where_the_rest_may_not_fit_headline_and_advice_say_so():
    rest = RestOfIteration(needed_bytes=GiB + 100 * MiB)
    verdict = verdict_on(fragmented(), rest=rest)
    assert not verdict.tags, "the last iteration may have needed something that others do not"
    assert verdict.cured_by
    assert "an iteration like the last needs 1.10 GiB" in verdict.headline
    advice = advice_text(verdict)
    assert advice is not None
    assert advice.startswith("try PYTORCH_ALLOC_CONF=expandable_segments:True: the recorded allocations pass")
    assert "1.10 GiB are needed, more than this process may use: then reduce live memory" in advice
    fits = verdict_on(fragmented(), rest=RestOfIteration(needed_bytes=GiB))
    assert fits.rest_exceeds is None
    assert "like the last" not in fits.headline
