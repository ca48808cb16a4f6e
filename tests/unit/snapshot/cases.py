"""A constructed run for each verdict and each tag, on an emulated card: the tests ask what is said of it, and the
examples of ``docs/verdict.md`` are what is said of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.verdict import FailedElsewhere, judge
from oomscope.snapshot.replay.fixes import Rules
from oomscope.snapshot.trace import Category, Moment
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import GiB, MiB
from tests.unit.snapshot.machine import Machine


def verdict_on(machine: Machine, **facts: Any) -> Verdict:
    """Judge what ran on ``machine``."""
    return judge(
        Timeline.of(machine.trace(), machine.segments()),
        machine.device,
        rules=Rules(conf=machine.conf),
        failure=machine.failure,
        **facts,
    )


def too_much() -> Machine:
    """Ten blocks of 100 MiB on a card of 1 GiB, and a request for one more."""
    machine = Machine(GiB)
    for _ in range(10):
        machine.alloc(100 * MiB, category=Category.PARAMETER)
    machine.alloc(100 * MiB)
    return machine


def fragmented(conf: str = "", *, total: int = GiB, **card: Any) -> Machine:
    """Four segments of 200 MiB, in which a few blocks of 30 MiB are left, and then a request for 300 MiB."""
    machine = Machine(total, conf, **card)
    large = [machine.alloc(200 * MiB) for _ in range(4)]
    for address in large:
        machine.free(address)
    small = [machine.alloc(30 * MiB) for _ in range(24)]
    for index, address in enumerate(small):
        if index % 6 != 2:
            machine.free(address)
    machine.alloc(300 * MiB)
    return machine


def granularity_band() -> Machine:
    """2 MiB are asked for, 19 MiB are free, and the allocator takes 20 MiB at a time."""
    machine = Machine(59 * MiB)
    machine.alloc(20 * MiB)
    machine.alloc(20 * MiB)
    machine.alloc(2 * MiB)
    return machine


def freed_by_the_last_wait() -> Machine:
    """A block that another stream still used is freed inside a live segment while the request waits for it."""
    machine = Machine(220 * MiB)
    whole = machine.alloc(200 * MiB)
    machine.free(whole)
    machine.alloc(20 * MiB)
    block = machine.alloc(150 * MiB)
    machine.use_on(block, 7)
    machine.free(block)
    machine.alloc(150 * MiB)
    return machine


def beside_others() -> Machine:
    """Other processes hold 500 MiB of the card of 1 GiB; this one has 400 MiB and wants 200 MiB more."""
    machine = Machine(GiB, others=500 * MiB)
    machine.alloc(400 * MiB)
    machine.alloc(200 * MiB)
    return machine


def leaking(total: int = GiB, *, per_iteration: int = 100 * MiB, iterations: int = 100) -> Machine:
    """Each iteration leaves a block alive, until one finds no room."""
    machine = Machine(total)
    for iteration in range(iterations):
        machine.moment = Moment("forward", iteration, 0)
        if machine.alloc(per_iteration, line=42) is None:
            break
        machine.moment = Moment("backward", iteration, 0)
        scratch = machine.alloc(50 * MiB, line=7)
        if scratch is None:
            break
        machine.free(scratch)
    return machine


def ended_by(failure: FailedElsewhere) -> Machine:
    """100 MiB of 1 GiB are live when something else than the allocator fails."""
    machine = Machine(GiB)
    machine.alloc(100 * MiB)
    machine.failure = failure
    return machine


class Case(NamedTuple):
    """A run, and what is known of it beside its trace."""

    machine: Callable[[], Machine]
    facts: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def verdict(self) -> Verdict:
        """Run it and judge it."""
        return verdict_on(self.machine(), **self.facts)


CASES: Final = {
    "capacity": Case(too_much),
    "fragmentation, cured": Case(fragmented),
    "fragmentation, uncured": Case(granularity_band),
    "outside, a library": Case(
        lambda: ended_by(FailedElsewhere(failed_in="outside", message="CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
    ),
    "outside, the program": Case(lambda: ended_by(FailedElsewhere(failed_in="program", message="batch too large"))),
    "host": Case(lambda: ended_by(FailedElsewhere(failed_in="host", message="MemoryError"))),
    "headroom": Case(lambda: fragmented(total=2 * GiB)),
    "foreign": Case(beside_others),
    "leak": Case(leaking),
    "spurious": Case(freed_by_the_last_wait),
    "later: capacity": Case(fragmented, {"demand_after": 2 * GiB}),
}
"""By the name under which ``docs/verdict.md`` shows it."""
