"""Settings reach the card's library whole, as one environment variable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.virtual.cards import CARDS
from oomscope.virtual.settings import VARIABLE, AddressPolicy, CardSettings, ValueRule, is_computed

SOURCES = Path(__file__).parents[3] / "oomscope" / "virtual" / "csrc"
BYTES = st.integers(0, 2**48)


def parsed(settings: CardSettings) -> dict[str, str]:
    variables = settings.variables()
    assert list(variables) == [VARIABLE]
    return dict(part.split("=", 1) for part in variables[VARIABLE].split(";"))


@st.composite
def settings_strategy(draw: st.DrawFn) -> CardSettings:
    card = CARDS[draw(st.sampled_from(sorted(CARDS)))]
    total = draw(BYTES)
    return CardSettings(
        card=card,
        total_bytes=total,
        used_bytes=draw(st.integers(0, total or card.total_bytes)),
        budget_bytes=draw(st.just(0) | st.integers(total or card.total_bytes, 2**49)),
        devices=draw(st.integers(1, 64)),
        address_policy=draw(st.sampled_from(get_args(AddressPolicy))),
        event_lag=draw(st.integers(0, 1000)),
        values=draw(st.sampled_from(get_args(ValueRule))),
        copy_limit_bytes=draw(BYTES),
        is_computed=draw(st.booleans()),
        ledger=draw(st.text(st.characters(exclude_characters=";\n\0", exclude_categories=["Cs"]))),
    )


@given(settings_strategy())
def test_what_was_set_is_what_is_read(settings: CardSettings) -> None:
    read = parsed(settings)
    told = {"used": settings.used_bytes, "devices": settings.devices, "event_lag": settings.event_lag}
    told |= {"copy_limit": settings.copy_limit_bytes, "total": settings.total_bytes or settings.card.total_bytes}
    told |= {"budget": settings.budget_bytes or told["total"]}
    assert {key: int(read[key]) for key in told} == told
    assert (read["addresses"], read["values"]) == (settings.address_policy, settings.values)
    assert read.get("ledger", "") == settings.ledger
    assert (read["computed"] == "1") == is_computed(settings.variables()) == settings.is_computed
    assert read["name"] == settings.card.device_name
    assert (int(read["major"]), int(read["minor"])) == settings.card.capability


def test_the_keys_are_those_that_the_library_reads() -> None:
    source = (SOURCES / "core" / "settings.cpp").read_text()
    known = set(re.findall(r'^ *\{"(\w+)", ', source, re.MULTILINE)) | set(re.findall(r'key == "(\w+)"', source))
    assert len(known) > 10
    assert set(parsed(CardSettings(ledger="/tmp/ledger"))) == known


@pytest.mark.parametrize(
    "odd",
    [
        {"used_bytes": 2, "total_bytes": 1},
        {"used_bytes": -1},
        {"budget_bytes": 1, "total_bytes": 2},
        {"budget_bytes": -1},
        {"devices": 0},
        {"devices": 65},
        {"event_lag": -1},
        {"ledger": "/tmp/a;values=ones"},
        {"ledger": "/tmp/a\nb"},
    ],
)
def test_settings_that_no_card_can_have_are_refused(odd: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="card"):
        CardSettings(**odd)
