"""Each rule in both directions, and the order in which broken rules are named.

``rule_cases.txt`` has of each rule settings that break it, of which none can be left out, and what mends the first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from oomscope.config.key_lookup import fields, homes
from oomscope.config.load import LoadedConfig, config_from_mapping
from oomscope.config.problems import InvalidConfigError
from oomscope.config.rules.check import RULES

BASE = {
    "model": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "attention_dropout": 0.0},
    "data": {"seq_length": 128},
}


class Case(NamedTuple):
    rule: str
    broken: list[str]
    """What breaks the rule, each a few settings ``key=value``."""
    mended: list[str]


TEXT = (Path(__file__).parent / "rule_cases.txt").read_text(encoding="utf-8")
LINES = re.findall(r"^(\S+) is broken by (.+)(?:\n  and mended by (.+))?$", TEXT, re.MULTILINE)
CASES = [Case(rule, broken.split(" / "), mended.split(" / ") if mended else []) for rule, broken, mended in LINES]
BROKEN = [pytest.param(case.rule, settings, id=case.rule) for case in CASES for settings in case.broken]
SEVERITY = {rule.id: rule.severity for rule in RULES}


def load(settings: str, *, enforce: bool = False) -> LoadedConfig:
    overrides = [f"{homes(setting.partition('=')[0])[0]}.{setting}" for setting in settings.split()]
    return config_from_mapping(BASE, overrides, enforce=enforce)


def rules_named(settings: str) -> list[str]:
    return [finding.rule for finding in load(settings).findings]


def refused(settings: str) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        load(settings, enforce=True)
    return caught.value


def test_every_rule_has_cases_an_id_of_its_own_and_keys_that_exist() -> None:
    assert [case.rule for case in CASES] == list(SEVERITY)
    assert len(SEVERITY) == len(RULES)
    assert {key for rule in RULES for key in rule.keys.split()} <= {f"{section}.{key}" for section, key, _ in fields()}


@pytest.mark.parametrize(("rule", "settings"), BROKEN)
def test_a_rule_is_broken_by_all_of_its_settings_together(rule: str, settings: str) -> None:
    assert rule in rules_named(settings)
    every = settings.split()
    for left_out in every:
        assert rule not in rules_named(" ".join(setting for setting in every if setting != left_out)), left_out


@pytest.mark.parametrize("case", [case for case in CASES if case.mended], ids=lambda case: case.rule)
def test_a_rule_is_mended(case: Case) -> None:
    for mended in case.mended:
        assert case.rule not in rules_named(f"{case.broken[0]} {mended}"), mended


@pytest.mark.parametrize(("rule", "settings"), BROKEN)
def test_errors_refuse_and_warnings_do_not(rule: str, settings: str) -> None:
    if SEVERITY[rule] != "warning":
        assert rule in [problem.rule for problem in refused(settings).problems]
    elif all(SEVERITY[other] == "warning" for other in rules_named(settings)):
        assert rule in [warning.rule for warning in load(settings, enforce=True).warnings]


def test_base_breaks_nothing() -> None:
    assert rules_named("") == []


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        (
            "cpu_offloading=true cpu_offloading_num_layers=9 recompute_granularity=full recompute_method=uniform",
            "O1",
            "R21",
        ),
        ("cpu_offloading=true recompute_granularity=full", "R21", "R3"),
        ("recompute_granularity=full", "R3", "R4"),
        (
            "recompute_granularity=full distribute_saved_activations=true sequence_parallel=true",
            "R4",
            "R6",
        ),
        (
            "recompute_granularity=selective recompute_modules=[mla_up_proj] fine_grained_activation_offloading=true",
            "R9",
            "F1",
        ),
    ],
)
def test_rules_are_named_in_the_order_of_upstream(settings: str, first: str, second: str) -> None:
    named = rules_named(settings)
    assert named.index(first) < named.index(second)


def test_a_refusal_names_rule_and_remedy() -> None:
    error = refused("cpu_offloading=true recompute_granularity=selective")
    assert error.problems[0].rule == "R21"
    assert "rule R21" in str(error)
    assert "set recompute_granularity to null" in str(error)
    assert "not modelled yet N-cp-latent" in str(refused("context_parallel_size=2 multi_latent_attention=true"))


def test_a_batch_that_does_not_divide_is_named_without_what_its_microbatches_lack() -> None:
    chunks = "pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2"
    assert rules_named(f"{chunks} global_batch_size=8 data_parallel_size=4 micro_batch_size=4") == ["B1"]
    assert rules_named(f"{chunks} global_batch_size=16 data_parallel_size=4 micro_batch_size=4") == ["V5", "V6"]
