"""Where iterations end by annotated spans: the steps of a profiler, else those of optimizers.

A program may have several optimizers. An iteration begins where the one that stepped first steps again, as
:mod:`oomscope.capture.steps` counts, and ends with the last step before that. An annotation names the class of the
optimizer alone; two of one class are told apart by the line that calls their step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from oomscope.snapshot.accounting.lifetimes import Indices
from oomscope.snapshot.infer.activity import Mark, Phase, StackReader
from oomscope.snapshot.infer.spans import spans_of
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.trace import Action, Annotation, Stack, Trace

PROFILER_STEP: Final = "ProfilerStep#"
OPTIMIZER_STEP: Final = "Optimizer.step#"
"""Spans once an iteration (torch/profiler/profiler.py, torch/optim/optimizer.py); the first kind present counts."""
_WRAPPER: Final = "torch/optim/optimizer.py"
"""File of the function around every step."""


class AnnotatedEnds(NamedTuple):
    """Where iterations end."""

    ends: Indices
    is_sure: bool = True
    """Whether it is certain that no two optimizers count as one."""


class _Step(NamedTuple):
    """One step of an optimizer."""

    optimizer: str
    """Class of the optimizer."""
    caller: Site | None
    """The line that called the step, if an allocation of the step shows it."""
    makes_states: bool
    runs_model: bool
    """Whether a closure that the step calls runs forward or backward."""
    first: int
    """First event of the step, or the one that follows where it has none."""
    past: int
    """The event after the last one of the step."""

    @property
    def key(self) -> tuple[str, Site | None]:
        return self.optimizer, self.caller


def annotated_ends(trace: Trace, annotations: Sequence[Annotation]) -> AnnotatedEnds:
    """Return the last event of each iteration; none where no span or no time shows one."""
    spans = [span for span in spans_of(trace, annotations) if span.past > 0]
    if any(mark.name.startswith(PROFILER_STEP) for mark in annotations):
        return AnnotatedEnds(_events_before([span.past for span in spans if span.name.startswith(PROFILER_STEP)]))
    steps = _distinguishable([_step(trace, *span) for span in spans if span.name.startswith(OPTIMIZER_STEP)])
    return AnnotatedEnds(_events_before(_iterations(trace, steps)), _are_one_a_key(steps))


def _events_before(events: list[int]) -> Indices:
    return np.unique([event - 1 for event in events]).astype(np.int64)


def _step(trace: Trace, name: str, first: int, past: int) -> _Step:
    """Return what the allocations between two events show of a step."""
    allocations = first + np.flatnonzero(trace.action[first:past] == Action.ALLOC)
    stacks = [trace.stacks[stack] for stack in np.unique(trace.stack_id[allocations]).tolist()]
    read = StackReader()
    phases_and_marks = [read(stack) for stack in stacks]
    return _Step(
        optimizer=name,
        caller=next(filter(None, map(_caller, stacks)), None),
        makes_states=any(Mark.STATE_INIT in marks for _, marks in phases_and_marks),
        runs_model=any(doing in (Phase.FORWARD, Phase.BACKWARD) for doing, _ in phases_and_marks),
        first=first,
        past=past,
    )


def _caller(stack: Stack) -> Site | None:
    """Return the line that called the step."""
    wrappers = [place for place, frame in enumerate(stack) if frame.filename.endswith(_WRAPPER)]
    return site_of(stack[wrappers[-1] + 1 :]) if wrappers else None


def _distinguishable(steps: list[_Step]) -> list[_Step]:
    """Return the steps without callers where these are not known of every step of the class."""
    untold = {step.optimizer for step in steps if step.caller is None}
    return [step._replace(caller=None) if step.optimizer in untold else step for step in steps]


def _iterations(trace: Trace, steps: list[_Step]) -> list[int]:
    """Return the events past the last step of each iteration.

    Steps between which nothing is allocated are of one iteration, whoever makes them: no model ran. A last iteration
    of fewer steps than the one before has not ended.
    """
    if not steps:
        return []
    allocated = np.append(0, np.cumsum(trace.action == Action.ALLOC))
    runs = [[steps[0]]]
    for step in steps[1:]:
        if step.runs_model or allocated[step.first] > allocated[min(runs[-1][-1].past, step.first)]:
            runs.append([])
        runs[-1].append(step)
    numbers = np.cumsum(_begin(runs)).tolist()
    iterations = [
        [step for _, run in numbered for step in run]
        for _, numbered in groupby(zip(numbers, runs, strict=True), key=lambda each: each[0])
    ]
    if len(iterations) > 1 and len(iterations[-1]) < len(iterations[-2]):
        iterations.pop()
    return [iteration[-1].past for iteration in iterations]


def _begin(runs: list[list[_Step]]) -> list[bool]:
    """Return which runs of steps are the first of an iteration.

    One optimizer may also give way to another for good, as after a warm-up; then each step of either is one.
    """
    keys = [run[0].key for run in runs]
    own = [key == keys[0] for key in keys]
    last = max(place for place, is_own in enumerate(own) if is_own)
    later = keys[last + 1 :]
    gave_way = all(own[: last + 1]) and len(set(later)) < len(later)
    return [True] * len(own) if gave_way else own


def _are_one_a_key(steps: list[_Step]) -> bool:
    """Whether no evidence shows two optimizers of one class that are called by one line, or by lines unknown.

    An optimizer makes its states in its first step.
    """
    making = [step.key for step in steps if step.makes_states]
    unknown = {step.key for step in steps if step.caller is None} - set(making)
    return len(set(making)) == len(making) and not unknown
