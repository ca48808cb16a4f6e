"""How faithfully a replay under the recorded settings repeats the recording: what it takes from the driver, and when.

An emulated allocator that makes the same decisions takes and gives back the same segments at the same requests. What it
does otherwise is listed event by event, with the reason where one is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar, Final, NamedTuple

import numpy as np

from oomscope.allocator import AllocatorSettings, ReplayOutcome
from oomscope.document import Document
from oomscope.snapshot.accounting.lifetimes import BEFORE
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.ascend import is_ascend
from oomscope.snapshot.replay.initial_memory import SEGMENT_ACTIONS
from oomscope.snapshot.replay.releases import releases_of
from oomscope.snapshot.replay.replay import SIGN
from oomscope.snapshot.replay.requests import Kind, Requests
from oomscope.snapshot.trace import Action

LONGEST_ALIGNED: Final = 250
"""Segment events at one request that are aligned one by one; aligning takes time with the cube of their number."""


TRUSTED: Final = 0.95
"""Share of repeated segment events below which nothing is concluded from other replays."""


ASCEND: Final = "torch_npu aligns blocks of expandable segments to 16 KiB, which is modelled in size only"
PRIVATE_POOLS: Final = (
    "the file does not record when a private pool is released, or may serve other pools or free memory for them"
)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A segment event that only one side has."""

    recorded: bool
    """Whether only the recording has it; else only the replay."""
    event: int
    """The request at which it happens: an index into the trace."""
    action: str
    size: int
    stream: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fidelity(Document):
    """What a replay and its recording have in common."""

    also_written: ClassVar[tuple[str, ...]] = ("share",)

    recorded: int
    """Segment events of the trace: ``segment_alloc``, ``segment_free``, ``segment_map``, ``segment_unmap``."""
    emulated: int
    """Segment events of the replay."""
    matched: int
    """Segment events of both: at the same request, in the same order, with the same action, size and stream."""
    allocations: int
    """Allocations of the trace."""
    placed: int
    """Allocations to which the replay gave the recorded address."""
    first_divergence: int | None = None
    """The first event whose block was placed elsewhere."""
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def share(self) -> float:
        """``matched`` of whichever side has more, so that neither side's surplus is hidden; 1 where neither has any."""
        larger = max(self.recorded, self.emulated)
        return self.matched / larger if larger else 1.0

    @property
    def shows_something(self) -> bool:
        """Whether either side has segment events."""
        return max(self.recorded, self.emulated) > 0

    @property
    def is_trusted(self) -> bool:
        """Whether the recording is repeated well enough to ask what other settings would do."""
        return self.share >= TRUSTED

    @property
    def is_exact(self) -> bool:
        """Whether every segment event and every address is the recorded one."""
        return self.matched == max(self.recorded, self.emulated) and self.placed == self.allocations


class Step(NamedTuple):
    """One call of the driver, without its address, which the driver chooses."""

    action: str
    size: int
    stream: int


Steps = dict[int, list[Step]]
"""Steps by the request at which they were taken."""


def fidelity_of(
    timeline: Timeline, requests: Requests, outcome: ReplayOutcome, settings: AllocatorSettings
) -> Fidelity:
    """Compare a trace with its replay under its own settings, in which the driver gives the recorded addresses.

    A step belongs to the next allocation or ``oom`` event, which caused it, or to the call of ``empty_cache``. Steps at
    one request are matched in order, by the longest runs in common.
    """
    recorded, emulated = _recorded_steps(timeline), _emulated_steps(requests, outcome)
    is_recorded = (requests.event > BEFORE) & (requests.block < len(timeline.lifetimes))
    asked = np.flatnonzero((requests.kind == Kind.MALLOC) & is_recorded)
    there = timeline.lifetimes.address[requests.block[asked]]
    strays = asked[outcome.addresses[asked].astype(np.uint64) != there]
    first_divergence = int(requests.event[strays[0]]) if len(strays) else None
    matched, differing = _compare(recorded, emulated)
    reason = _Reasons(timeline, requests, settings, first_divergence) if differing else None
    return Fidelity(
        recorded=sum(map(len, recorded.values())),
        emulated=sum(map(len, emulated.values())),
        matched=matched,
        allocations=len(asked),
        placed=len(asked) - len(strays),
        first_divergence=first_divergence,
        mismatches=tuple(
            Mismatch(recorded=is_ours, event=event, reason=reason(event, step), **step._asdict())
            for event, step, is_ours in differing
            if reason
        ),
    )


def _recorded_steps(timeline: Timeline) -> Steps:
    trace = timeline.trace
    asked = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))
    called = {
        event: release.event
        for release in releases_of(timeline)
        if not release.refused
        for event in range(release.event, release.end)
    }
    steps: Steps = defaultdict(list)
    for event in np.flatnonzero(np.isin(trace.action, SEGMENT_ACTIONS)).tolist():
        place = int(np.searchsorted(asked, event))
        cause = called.get(event, int(asked[place]) if place < len(asked) else len(trace))
        name = Action(int(trace.action[event])).name.lower()
        steps[cause].append(Step(name, int(trace.size[event]), int(trace.stream[event])))
    return steps


def _emulated_steps(requests: Requests, outcome: ReplayOutcome) -> Steps:
    steps: Steps = defaultdict(list)
    for event in outcome.events:
        if event.action in SIGN and requests.event[event.op] > BEFORE:
            steps[int(requests.event[event.op])].append(Step(event.action, event.size, event.stream))
    return steps


def _compare(recorded: Steps, emulated: Steps) -> tuple[int, list[tuple[int, Step, bool]]]:
    """Return how many steps both have, and those that one has alone with their event; True for the recording's."""
    matched = 0
    differing: list[tuple[int, Step, bool]] = []
    for event in sorted(recorded.keys() | emulated.keys()):
        ours, theirs = recorded.get(event, []), emulated.get(event, [])
        if ours == theirs:
            matched += len(ours)
            continue
        for is_common, of_recording, of_replay in _runs(ours, theirs):
            matched += len(of_recording) if is_common else 0
            if not is_common:
                differing += ((event, step, True) for step in of_recording)
                differing += ((event, step, False) for step in of_replay)
    return matched, differing


def _runs(ours: Sequence[Step], theirs: Sequence[Step]) -> Iterator[tuple[bool, Sequence[Step], Sequence[Step]]]:
    """Yield what two lists have in common, and in between what they do not.

    Beyond their common ends, lists of more than :data:`LONGEST_ALIGNED` steps are not compared and count as different.
    """
    shortest = min(len(ours), len(theirs))
    head = next((at for at in range(shortest) if ours[at] != theirs[at]), shortest)
    tail = next((at for at in range(shortest - head) if ours[-1 - at] != theirs[-1 - at]), shortest - head)
    left, right = ours[head : len(ours) - tail], theirs[head : len(theirs) - tail]
    yield True, ours[:head], theirs[:head]
    if max(len(left), len(right)) > LONGEST_ALIGNED:
        yield False, left, right
    else:
        matcher = SequenceMatcher(None, left, right, autojunk=False)
        for tag, start, end, other_start, other_end in matcher.get_opcodes():
            yield tag == "equal", left[start:end], right[other_start:other_end]
    yield True, ours[len(ours) - tail :], theirs[len(theirs) - tail :]


def switches_expandable(timeline: Timeline) -> bool:
    """Return whether expandable segments were switched on or off during the trace: memory is taken in both ways."""
    return bool(np.isin((Action.SEGMENT_ALLOC, Action.SEGMENT_MAP), timeline.trace.action).all())


class _Reasons:
    """Reasons in the file for which the replay differs."""

    def __init__(
        self, timeline: Timeline, requests: Requests, settings: AllocatorSettings, first_divergence: int | None
    ) -> None:
        self._timeline = timeline
        self._collects_garbage = settings.garbage_collection_threshold > 0
        self._first_divergence = first_divergence
        self._records_segments = bool(np.isin(timeline.trace.action, SEGMENT_ACTIONS).any())
        facts = {
            "expandable segments were switched during the recording": switches_expandable(timeline),
            PRIVATE_POOLS: requests.has_private_pools,
            ASCEND: is_ascend(timeline) and settings.expandable_segments,
        }
        self._of_file = next((reason for reason, holds in facts.items() if holds), None)

    def __call__(self, event: int, step: Step) -> str:
        """Return why ``step`` at ``event`` is one side's alone."""
        if not self._records_segments and not self._lies_in_known_segment(event):
            return "the block lies in no segment of the file, which records no segment events"
        if self._collects_garbage and step.action == "segment_free":
            return "garbage collection depends on the memory fraction, which the file does not record"
        if self._of_file:
            return self._of_file
        if self._first_divergence is not None and event > self._first_divergence:
            return f"follows from event {self._first_divergence}, whose block lies elsewhere than recorded"
        return "unexplained"

    def _lies_in_known_segment(self, event: int) -> bool:
        if event >= len(self._timeline.trace):
            return False
        address = int(self._timeline.trace.address[event])
        segments = self._timeline.segments or ()
        return any(segment.address <= address < segment.address + segment.total_size for segment in segments)
