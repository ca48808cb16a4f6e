"""How large a card is for a process: weighed by the driver, or as the process was told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import MachineUnfitError
from oomscope.probe.machine.nvml import Card, CardMemory
from oomscope.probe.recording import cards
from oomscope.probe.recording.cards import RealCard, check_kernels, fraction_for
from oomscope.probe.recording.settings import SessionSettings
from oomscope.units import GiB, MiB
from oomscope.virtual.cards import CARDS

TOTAL = 79 * GiB
CONTEXT = 500 * MiB
FOREIGN = 2 * GiB


@given(st.integers(1, 300 * GiB).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_fraction_allows_exactly_what_is_available(sizes: tuple[int, int]) -> None:
    available, total = sizes
    fraction = fraction_for(available, total)
    assert 0 <= fraction <= 1
    assert int(fraction * float(total)) == available


def reading(used: int) -> CardMemory:
    return CardMemory(total_bytes=80 * GiB, used_bytes=used, driver_version="570")


class PaperCard:
    """Stands for torch.cuda and the driver of one card."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before, self.after = FOREIGN, FOREIGN + CONTEXT
        self.reserved = 0
        self.fraction: float | None = None
        monkeypatch.setattr(cards, "list_cards", self.list_cards)
        monkeypatch.setattr(cards, "read_card", lambda uuid: reading(self.after))
        properties = SimpleNamespace(name="Paper 80GB", uuid="1234", total_memory=TOTAL)
        for name, value in {
            "get_device_properties": lambda index: properties,
            "get_device_capability": lambda index: (9, 0),
            "synchronize": lambda index: None,
            "memory_reserved": lambda index: self.reserved,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda.memory, "set_per_process_memory_fraction", self.set_fraction)

    def list_cards(self) -> tuple[Card, ...]:
        return (Card(index=0, name="Paper", uuid="GPU-1234", memory=reading(self.before), processes=()),)

    def set_fraction(self, fraction: float, index: int) -> None:
        self.fraction = fraction


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> PaperCard:
    return PaperCard(monkeypatch)


def test_a_run_without_a_limit_uses_the_card_as_it_is(card: PaperCard) -> None:
    budget = RealCard(SessionSettings(gpu=None)).begin(0)
    assert (budget.gpu, budget.limit_bytes, budget.fraction) == ("Paper 80GB", TOTAL, None)
    assert (budget.non_torch_bytes, budget.other_process_bytes) == (CONTEXT, FOREIGN)
    assert card.fraction is None, "a fraction that somebody else set stays"


def test_a_smaller_card_is_played_by_the_fraction(card: PaperCard) -> None:
    real = RealCard(SessionSettings(gpu=CARDS["a100-40gb"]))
    budget = real.begin(0)
    assert card.fraction is not None
    assert int(card.fraction * TOTAL) == budget.available_bytes
    assert (budget.limit_bytes, budget.card_bytes) == (CARDS["a100-40gb"].total_bytes, TOTAL)
    real.end(0)
    assert card.fraction == 1.0, "lifted again"


def test_growth_outside_the_allocator_is_noted(card: PaperCard) -> None:
    real = RealCard(SessionSettings(gpu=None))
    real.begin(0)
    card.after += 3 * GiB
    assert real.end(3 * GiB) == ()
    assert real.end(3 * GiB - MiB) == (), "a small change is not worth a word"
    (note,) = real.end(2 * GiB)
    assert "outside the allocator changed by +1.00 GiB" in note
    (note,) = real.end(5 * GiB)
    assert "-2.00 GiB" in note


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SessionSettings(gpu=CARDS["b200"]), "--gpu"),
        (SessionSettings(gpu=None, limit_bytes=80 * GiB), "--limit"),
    ],
)
def test_a_card_larger_than_the_one_there_is_refused(card: PaperCard, settings: SessionSettings, said: str) -> None:
    with pytest.raises(MachineUnfitError, match=said):
        RealCard(settings).begin(0)


def test_a_card_that_others_fill_is_unfit(card: PaperCard) -> None:
    card.before = card.after = TOTAL
    with pytest.raises(MachineUnfitError, match="other processes hold 79"):
        RealCard(SessionSettings(gpu=None)).begin(0)


def test_a_card_that_torch_has_no_kernels_for_is_unfit() -> None:
    check_kernels(CARDS["h100-80gb"], ["sm_80", "sm_90"])
    check_kernels(CARDS["v100-32gb"], [])
    with pytest.raises(
        MachineUnfitError, match=r"no kernels for a v100-32gb \(compute capability 7.0\), only for sm_80"
    ):
        check_kernels(CARDS["v100-32gb"], ["sm_80", "sm_90"])
