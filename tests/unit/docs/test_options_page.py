"""Every key has its row, and the page is what its maker writes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from docs.build.options import NO_EFFECT, NOT_MODELLED, OWN_SECTIONS, SMALL, TOPICS, page, probed, row
from oomscope.config.key_lookup import fields
from oomscope.config.load import load_preset
from oomscope.config.rules.check import RULES
from oomscope.errors import ConfigError
from oomscope.probe.tuning.variants import Variant
from oomscope.units import Bytes

DOCS = Path(__file__).resolve().parents[3] / "docs"
OPTIONS = [option for options in TOPICS.values() for option in options]
SIZE = re.compile(r"[+-]?\d+(\.\d+)? ([KMGT]iB|B)\b")


def made_up(preset: str, overrides: tuple[str, ...]) -> Variant:
    peak = Bytes(requested_bytes=2**30, reserved_bytes=2**31)
    return Variant(overrides=overrides, outcome="fits", peak=peak, sequence_s=1.0)


def without_numbers(line: str) -> str:
    """Return a row of the page without what was measured: the fifth to eighth cell."""
    cells = line.split(" | ")
    return " | ".join(cells[:4]) if len(cells) == 8 else line


def test_every_key_has_exactly_one_place() -> None:
    named = Counter([*(key for option in OPTIONS for key in option.keys), *NO_EFFECT, *NOT_MODELLED])
    of_a_run = {f"{section}.{key}" for section, key, _ in fields() if section not in OWN_SECTIONS}
    assert {key for key, times in named.items() if times > 1} == set()
    assert of_a_run - named.keys() == set()
    assert {key for key in named.keys() - of_a_run if not key.startswith("device.")} == set()


def test_examples_obey_the_rules_and_say_something() -> None:
    for option in OPTIONS:
        base = (*SMALL[option.preset], *option.given)
        before, after = (load_preset(option.preset, (*base, *more)).config for more in ((), option.example))
        assert before != after, option.keys


def test_what_is_not_modelled_has_a_rule() -> None:
    ruled = {key for rule in RULES for key in rule.keys.split()}
    assert set(NOT_MODELLED) <= ruled


def test_the_page_is_what_its_maker_writes() -> None:
    """But for the numbers, which ``make options`` measures in a few minutes."""
    written = (DOCS / "options.md").read_text(encoding="utf-8").splitlines()
    made = page(made_up).splitlines()
    assert [without_numbers(line) for line in written] == [without_numbers(line) for line in made]
    rows = [cells for line in written if len(cells := line.split(" | ")) == 8 and cells[4] != "before"]
    assert len(rows) == len(OPTIONS)
    assert all(SIZE.match(cell) for cells in rows for cell in cells[4:7])


@pytest.mark.parametrize("key", ["model.hidden_dropout", "data.micro_batch_size"])
def test_rows_are_measured_again(key: str) -> None:
    (option,) = [option for option in OPTIONS if option.keys[0] == key]
    assert row(option, probed()).rstrip("\n") in (DOCS / "options.md").read_text(encoding="utf-8").splitlines()


def test_an_example_that_does_not_fit_is_refused() -> None:
    def fails(preset: str, overrides: tuple[str, ...]) -> Variant:
        return Variant(overrides=overrides, outcome="oom", message="no room")

    with pytest.raises(ConfigError, match="no room"):
        row(OPTIONS[0], fails)
