"""Bins lose no peak, average nothing, and show only what was really live at one event."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.explain.curves import bins_of
from oomscope.snapshot.infer.categorise import categorise
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Category, Frame
from oomscope.units import GiB

from .foreign import Training
from .machine import Machine
from .test_replay import CONFS, STEPS, run


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CONFS), st.integers(1, 9), st.integers(1, 5))
def test_each_bin_is_a_real_moment_and_the_highest_of_its_events(steps, conf, per_bin, factor):
    machine = Machine(GiB, conf)
    run(machine, steps)
    timeline = Timeline.of(machine.trace(), machine.segments())
    evidence = categorise(timeline)
    fine = bins_of(timeline, evidence, 1)
    assert (fine.all_requested == timeline.requested).all()
    bins = bins_of(timeline, evidence, per_bin).coarser(factor)
    width = per_bin * factor
    assert len(bins) == -(-len(timeline.trace) // width)
    for index, event in enumerate(bins.event.tolist()):
        span = slice(index * width, (index + 1) * width)
        assert event == index * width + int(timeline.requested[span].argmax())
        assert bins.reserved[index] == timeline.reserved[span].max()
        rows = timeline.requested_at(event)
        for category in Category:
            held = int(timeline.lifetimes.size[rows][evidence.category[rows] == category].sum())
            assert bins.requested.get(category.label, np.zeros(len(bins)))[index] == held
    if len(bins):
        assert bins.event[bins.peak] == timeline.peak_event()


def test_a_bin_knows_the_line_and_the_moment_of_its_event():
    machine = Training()
    machine.step()
    timeline = Timeline.of(machine.trace(), machine.segments())
    bins = bins_of(timeline, categorise(timeline), 3)
    for index, event in enumerate(bins.event.tolist()):
        stack = timeline.trace.stacks[timeline.trace.stack_id[event]]
        site = bins.sites[bins.site[index]]
        assert (site is None) == (not stack)
        assert site is None or any((site.file, site.line) == frame[:2] for frame in stack)
        moment = timeline.trace.moments[timeline.trace.moment_id[event]]
        assert bins.moments[bins.moment[index]] == (moment.iteration, moment.phase)
        assert bins.time_us[index] == timeline.trace.time_us[event] - timeline.trace.time_us[0]


def test_what_backward_allocates_is_of_the_forward_line_behind_it():
    builder = TraceBuilder()
    forward, backward = ((Frame("model.py", line, name),) for line, name in ((7, "forward"), (9, "backward")))
    builder.event(Action.ALLOC, 512, 512, 0, 0, backward, forward_stack=forward)
    timeline = Timeline.of(builder.build())
    (site,) = bins_of(timeline, categorise(timeline), 1).sites
    assert site is not None
    assert (site.line, site.function) == (7, "forward")
