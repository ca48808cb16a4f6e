from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import UsageError
from oomscope.units import GiB, MiB
from oomscope.virtual import cards
from oomscope.virtual.cards import _ALIASES, CARDS, DEFAULT_CARD, find_card


@pytest.mark.parametrize("spelling", ["h100-80gb", "H100-80GB", "h100_80gb", "H100 80gb", "h100"])
def test_a_card_is_found_however_it_is_spelled(spelling: str) -> None:
    assert find_card(spelling).name == "h100-80gb"


def test_cards_are_found_by_what_the_driver_calls_them() -> None:
    for name, card in CARDS.items():
        assert find_card(card.device_name).name == name
        assert find_card(card.device_name.replace(" ", "_")).name == name


def test_an_80_gb_card_has_about_79_gib() -> None:
    for name in ("h100-80gb", "h100-pcie", "a100-80gb"):
        assert 79.0 * GiB < CARDS[name].total_bytes < 79.6 * GiB


def test_every_card_names_the_sources_of_its_row() -> None:
    assert DEFAULT_CARD in CARDS
    assert set(_ALIASES.values()) <= set(CARDS)
    with Path(cards.__file__).with_suffix(".csv").open(newline="") as file:
        assert all(row["cache_source"] for row in csv.DictReader(file))
    for name, card in CARDS.items():
        assert card.name == name
        assert f"{card.total_bytes // MiB}" in card.source, "the total is the one of the source"
        assert card.total_bytes % MiB == 0
        assert repr(card.device_name) in card.source
        assert card.multiprocessors > 0
        assert card.bus_bits % 64 == 0
        assert card.l2_bytes >= 4 * MiB


def test_a_block_may_have_a_kibibyte_less_than_its_multiprocessor_since_ampere() -> None:
    for card in CARDS.values():
        limits = card.sm_limits
        reserved = 1024 if card.capability >= (8, 0) else 0  # the guide: CUDA reserves 1 KB a block
        assert limits.shared_bytes - limits.shared_bytes_per_block == reserved
        assert limits.threads % limits.blocks == 0


@pytest.mark.parametrize(("name", "meant"), [("h10", "h100-80gb"), ("a100-8gb", "a100-80gb"), ("rtx409", "rtx4090")])
def test_a_near_miss_suggests_the_likely_name(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean .*{meant}"):
        find_card(name)


def test_an_unknown_card_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known cards: b200, h200"):
        find_card("potato!")


@given(st.text(st.characters(codec="ascii"), max_size=20).filter(lambda name: "".join(name.split())))
def test_an_unknown_card_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_card(f"x{name}?")
    assert "\n" not in str(caught.value)
