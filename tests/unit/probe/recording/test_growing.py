"""What keeps more tensors with each iteration has a name; meta tensors stand for those on a card."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oomscope.probe.recording.growing import GrowingContainers
from oomscope.units import MiB

global_list: list[Any] = []


def tensor(device: str = "meta") -> torch.Tensor:
    return torch.empty(1, device=device)


def names_after(step: Callable[[int], None], *, grows: int = 2 * MiB, steps: int = 3) -> tuple[str, ...]:
    """Return what is named after some iterations of ``step``, in each of which memory grows."""
    held = 0
    growing = GrowingContainers(lambda: held)
    for number in range(steps):
        growing.iteration_begins()
        step(number)
        held += grows
    growing.iteration_begins()
    return growing.names


class Trainer:
    def __init__(self) -> None:
        self.history: dict[int, Any] = {}
        self.recent: deque[Any] = deque()
        self.fixed = [tensor()]


def test_a_local_list_is_named_with_its_file_where_reading_it_keeps_nothing() -> None:
    losses: list[torch.Tensor] = []
    names = names_after(lambda _: losses.append(tensor()))
    assert names == (("losses in test_growing.py (3 entries)",) if sys.version_info >= (3, 13) else ())


def test_no_variable_of_the_program_is_kept_alive() -> None:
    trainer, seen = Trainer(), tensor()
    gone = weakref.ref(seen)
    names_after(lambda number: trainer.history.update({number: tensor()}))
    del seen
    assert gone() is None


def test_nothing_of_the_program_s_own_is_called() -> None:
    class Hostile(list):  # type: ignore[type-arg]
        __slots__ = ()
        __len__ = __getitem__ = __iter__ = lambda *_: 1 / 0

        def __getattr__(self, name: str) -> None:
            raise KeyError(name)

    trainer = Trainer()
    hostile = Hostile()

    def step(number: int) -> None:
        trainer.history[number] = tensor()
        list.append(hostile, trainer.history)

    assert names_after(step) == ("Trainer.history (3 entries)",)


def test_a_global_list_is_named_with_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "global_list", [])  # gc.freeze() of the tests hides older ones
    assert names_after(lambda _: global_list.append(tensor())) == ("global_list in test_growing.py (3 entries)",)


def test_attributes_are_named_by_their_class() -> None:
    trainer = Trainer()

    def step(number: int) -> None:
        trainer.history[number] = (tensor(), number)
        trainer.recent.append([tensor()])

    assert sorted(names_after(step)) == ["Trainer.history (3 entries)", "Trainer.recent (3 entries)"]


@pytest.mark.parametrize(("device", "grows", "steps"), [("cpu", 2 * MiB, 3), ("meta", 1000, 3), ("meta", 2 * MiB, 1)])
def test_nothing_is_named_without_growth_on_the_card(device: str, grows: int, steps: int) -> None:
    losses: list[torch.Tensor] = []
    assert names_after(lambda _: losses.append(tensor(device)), grows=grows, steps=steps) == ()


def test_a_list_that_stays_as_long_is_not_named() -> None:
    recent: deque[torch.Tensor] = deque(maxlen=1)
    assert names_after(lambda _: recent.append(tensor())) == ()
