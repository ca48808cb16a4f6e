"""A simulated card for tests: bare (no kernel temporaries, nothing outside the allocator) unless asked otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oomscope.probe.measurement import Measurement
from oomscope.probe.session import SessionSettings
from oomscope.probe.sim import SimSession
from oomscope.snapshot.trace import Action, Category, Trace
from oomscope.virtual.cards import find_card


@pytest.fixture
def simulate() -> Callable[..., SimSession]:
    """Return a maker of sessions."""

    def make(**settings: object) -> SimSession:
        bare = {"gpu": find_card("h100-80gb"), "op_temporaries": False, "non_torch_bytes": 0}
        return SimSession(SessionSettings(**{**bare, **settings}))

    return make


class Story:
    """What a measurement recorded, in the terms of a test."""

    def __init__(self, measurement: Measurement) -> None:
        self.trace: Trace = measurement.trace

    def allocations(self, phase: str | None = None) -> list[int]:
        """Sizes of allocations, in order."""
        return [int(self.trace.size[i]) for i in self.indices(phase)]

    def indices(self, phase: str | None = None) -> list[int]:
        """Event numbers of allocations, in order."""
        trace = self.trace
        return [
            i
            for i in range(len(trace))
            if trace.action[i] == Action.ALLOC and (phase is None or trace.moments[trace.moment_id[i]].phase == phase)
        ]

    def categories(self, phase: str | None = None) -> dict[str, int]:
        """Bytes allocated by category."""
        found: dict[str, int] = {}
        for i in self.indices(phase):
            label = Category(int(self.trace.category[i])).label
            found[label] = found.get(label, 0) + int(self.trace.size[i])
        return found

    def actions(self) -> list[Action]:
        """Every event's action."""
        return [Action(int(action)) for action in self.trace.action]

    def requested_bytes(self) -> int:
        """Requested bytes live at the end."""
        live: dict[int, int] = {}
        for action, address, size in zip(self.trace.action, self.trace.address, self.trace.size, strict=True):
            if action == Action.ALLOC:
                live[int(address)] = int(size)
            elif action == Action.FREE_COMPLETED:
                del live[int(address)]
        return sum(live.values())


@pytest.fixture
def story() -> type[Story]:
    """Return the reader of measurements."""
    return Story
