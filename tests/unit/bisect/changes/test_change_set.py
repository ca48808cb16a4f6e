"""Layers upon a base: the same changes by one row of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.changes.change_set import CombinedChanges
from oomscope.bisect.results.result import KeyChange
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.search.deltas import Changes, units_of
from oomscope.bisect.search.measured import Bytes, Untestable
from oomscope.probe.job import BundledTarget, ProbeJob

JOB = ProbeJob(target=BundledTarget(config={}))


@dataclass
class Part:
    """A base or a layer; ``needs`` are pairs of which the first change needs the second."""

    name: str
    count: int
    needs: frozenset[tuple[int, int]] = frozenset()
    good: str = field(init=False)
    bad: str = field(init=False)

    def __post_init__(self) -> None:
        self.good, self.bad = f"good {self.name}", f"bad {self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{number}" for number in range(self.count))

    def units(self) -> list[Changes]:
        return units_of(self.count, self.is_valid)

    def is_valid(self, changes: Changes) -> bool:
        return all(second in changes for first, second in self.needs if first in changes)

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        return KeyChange(key=key, good=0, bad=1, delta=delta)

    def experiment(self, changes: Changes, on: Experiment | None = None, /) -> Experiment | Untestable:
        experiment = on or Experiment(job=JOB)
        made = {f"{self.name}{number}": "" for number in changes}
        return replace(experiment, job=replace(experiment.job, environment={**experiment.job.environment, **made}))

    def commands(self, changes: Changes, on: tuple[str, ...] = ("lay out", "probe"), /) -> tuple[str, ...]:
        *before, last = on or ("lay out", "probe")
        return (*before, f"{self.name}{sorted(changes)} {last}")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_every_part_gets_its_own_changes(counts: list[int], data: st.DataObject) -> None:
    parts = [Part("abcd"[place], count) for place, count in enumerate(counts)]
    axes = CombinedChanges(parts)
    chosen = data.draw(st.frozensets(st.sampled_from(range(len(axes.keys))))) if axes.keys else frozenset()
    experiment = axes.experiment(chosen)
    assert isinstance(experiment, Experiment)
    assert set(experiment.job.environment) == {axes.keys[change] for change in chosen}
    assert axes.keys == tuple(key for part in parts for key in part.keys)
    assert frozenset(range(len(axes.keys))) == frozenset[int]().union(*axes.units())


def test_units_stay_together_and_valid_is_what_every_part_finds_valid() -> None:
    axes = CombinedChanges([Part("a", 2), Part("b", 3, frozenset({(0, 2), (2, 0)}))])
    assert axes.units() == [frozenset({0}), frozenset({1}), frozenset({3}), frozenset({2, 4})]
    assert axes.is_valid(frozenset({0, 2, 4}))
    assert not axes.is_valid(frozenset({2}))
    assert axes.change("b1").key == "b1"
    assert (axes.good, axes.bad) == ("good a under good b", "bad a under bad b")


def test_the_last_command_is_run_in_the_surroundings() -> None:
    axes = CombinedChanges([Part("a", 2), Part("b", 2), Part("c", 1)])
    assert axes.commands(frozenset({1, 2, 4})) == ("lay out", "c[0] b[0] a[1] probe")


def test_what_the_base_cannot_test_no_layer_can() -> None:
    class Broken(Part):
        def experiment(self, changes: Changes, on: Experiment | None = None, /) -> Untestable:
            return Untestable("a rule")

    assert CombinedChanges([Broken("a", 1), Part("b", 1)]).experiment(frozenset({0})) == Untestable("a rule")
