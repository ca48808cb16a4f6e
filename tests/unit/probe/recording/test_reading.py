"""Events after a backward pass get the phase that what follows them tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oomscope.probe.recording.reading import resolve_phases
from oomscope.snapshot.read.build_snapshot import empty_trace
from oomscope.snapshot.trace import AFTER_BACKWARD, UNKNOWN_MOMENT, Moment

STEP = Moment("optimizer", 0, -1)


def resolved_moments(*moments: Moment) -> list[Moment]:
    """Return the moments of events that were recorded with these."""
    table = (UNKNOWN_MOMENT, *dict.fromkeys(moments))
    trace = replace(empty_trace(0), moments=table, moment_id=np.array([table.index(each) for each in moments]))
    found = resolve_phases(trace)
    assert len(set(found.moments)) == len(found.moments)
    return [found.moments[number] for number in found.moment_id]


def test_between_backward_and_step_it_is_the_optimizers_phase() -> None:
    assert resolved_moments(Moment("backward", 0, 0), Moment(AFTER_BACKWARD, 0, 1), STEP) == [
        Moment("backward", 0, 0),
        STEP,
        STEP,
    ]


def test_between_two_microbatches_it_is_neither_loss_nor_optimizer() -> None:
    found = resolved_moments(Moment(AFTER_BACKWARD, 0, 1), Moment("forward", 0, 1), Moment("backward", 0, 1))
    assert found[0] == Moment("other", 0, -1)


def test_between_two_backward_passes_without_a_forward_it_is_a_loss() -> None:
    found = resolved_moments(Moment(AFTER_BACKWARD, 0, 1), Moment("backward", 0, 1), Moment(AFTER_BACKWARD, 0, 2), STEP)
    assert found == [Moment("loss", 0, 1), Moment("backward", 0, 1), STEP, STEP]
    assert resolved_moments(Moment(AFTER_BACKWARD, 0, 1), Moment("backward", 1, 1))[0] == STEP, "of another iteration"
