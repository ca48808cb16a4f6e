from __future__ import annotations

from oomscope.probe.roles import Told, categorise
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Category, Moment

FORWARD = Moment("forward", 0, 0)
BACKWARD = Moment("backward", 0, 0)


class Script:
    """Writes a trace whose times are its event numbers."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()

    def alloc(self, address: int, moment: Moment = FORWARD, category: Category = Category.UNKNOWN) -> int:
        time_us = len(self.builder)
        return self.builder.event(Action.ALLOC, address, 512, time_us=time_us, moment=moment, category=category)

    def free(self, address: int, moment: Moment = FORWARD) -> None:
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            self.builder.event(action, address, 512, time_us=len(self.builder), moment=moment)

    def categories(self, *told: Told) -> dict[int, Category]:
        trace = categorise(Timeline.of(self.builder.build(), ()), told)
        allocs = (trace.action == Action.ALLOC).nonzero()[0].tolist()
        return {event: Category(trace.category[event]) for event in allocs}


def test_what_was_told_goes_to_the_block_that_held_the_address_then() -> None:
    script = Script()
    first = script.alloc(0x100)
    script.free(0x100, BACKWARD)
    second = script.alloc(0x100)
    assert script.categories(Told(0x100, first, Category.PARAMETER), Told(0x100, second, Category.GRADIENT)) == {
        first: Category.PARAMETER,
        second: Category.GRADIENT,
    }


def test_what_was_said_last_stands() -> None:
    script = Script()
    event = script.alloc(0x100)
    told = (Told(0x100, 5, Category.GRADIENT), Told(0x100, 6, Category.MAIN_GRADIENT))
    assert script.categories(*told) == {event: Category.MAIN_GRADIENT}


def test_what_is_said_of_no_block_is_ignored() -> None:
    script = Script()
    event = script.alloc(0x100)
    told = (Told(0x900, 5, Category.GRADIENT), Told(0x100, -1, Category.GRADIENT))
    assert script.categories(*told) == {event: Category.UNKNOWN}


def test_lifetimes_tell_activations_from_temporaries() -> None:
    script = Script()
    temporary, activation, in_backward, lasting = (script.alloc(0x100), script.alloc(0x200), 0, 0)
    script.free(0x100)
    in_backward = script.alloc(0x300, BACKWARD)
    script.free(0x300, Moment("optimizer", 0, -1))
    script.free(0x200, BACKWARD)
    lasting = script.alloc(0x400)
    assert script.categories() == {
        temporary: Category.TEMPORARY,
        activation: Category.ACTIVATION,
        in_backward: Category.UNKNOWN,
        lasting: Category.UNKNOWN,
    }


def test_without_phases_nothing_is_guessed() -> None:
    script = Script()
    nowhere = Moment("", -1, -1)
    event = script.alloc(0x100, nowhere)
    script.free(0x100, nowhere)
    assert script.categories() == {event: Category.UNKNOWN}


def test_what_the_trace_says_itself_is_kept() -> None:
    script = Script()
    event = script.alloc(0x100, category=Category.WORKSPACE)
    assert script.categories(Told(0x100, 5, Category.PARAMETER)) == {event: Category.WORKSPACE}
