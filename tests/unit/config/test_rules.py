"""Each rule in both directions, and the order in which broken rules are named."""

from __future__ import annotations

from typing import Any

import pytest

from oomscope.config.key_lookup import fields
from oomscope.config.load import config_from_mapping
from oomscope.config.problems import InvalidConfigError
from oomscope.config.rules.check import RULES, check
from oomscope.config.rules.rule import Finding
from tests.unit.config.rule_cases import memory, model, parallelism
from tests.unit.config.rule_cases.settings import (
    BASE,
    CP2,
    DISTRIBUTE,
    FINE,
    FULL,
    LATENT,
    MODULES,
    OFFLOAD,
    OFFLOADED,
    SELECTIVE,
    SP2,
    UNIFORM,
    Cases,
    Settings,
)

CASES: Cases = {**parallelism.CASES, **model.CASES, **memory.CASES}


def nested(settings: Settings) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {}
    for name, value in {**BASE, **settings}.items():
        section, key = name.split(".")
        document.setdefault(section, {})[key] = value
    return document


def findings(settings: Settings) -> list[Finding]:
    return list(config_from_mapping(nested(settings), enforce=False).findings)


def refused(settings: Settings) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        config_from_mapping(nested(settings))
    return caught.value


def rules_named(settings: Settings) -> list[str]:
    return [finding.rule for finding in findings(settings)]


def cases(side: int) -> list[Any]:
    return [
        pytest.param(rule, case, id=f"{rule}-{n}") for rule, pair in CASES.items() for n, case in enumerate(pair[side])
    ]


def test_every_rule_has_cases_and_its_own_id() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))
    assert set(CASES) == set(ids)


@pytest.mark.parametrize(("rule", "settings"), cases(0))
def test_rule_is_broken(rule: str, settings: Settings) -> None:
    assert rule in rules_named(settings)


@pytest.mark.parametrize(("rule", "settings"), cases(1))
def test_rule_is_kept(rule: str, settings: Settings) -> None:
    assert rule not in rules_named(settings)


@pytest.mark.parametrize(("rule", "settings"), cases(0))
def test_errors_refuse_and_warnings_do_not(rule: str, settings: Settings) -> None:
    severity = next(row.severity for row in RULES if row.id == rule)
    others_refuse = any(finding.is_fatal for finding in findings(settings))
    if severity == "warning" and not others_refuse:
        loaded = config_from_mapping(nested(settings))
        assert rule in [warning.rule for warning in loaded.warnings]
    else:
        assert severity == "warning" or rule in [problem.rule for problem in refused(settings).problems]


def test_base_breaks_nothing() -> None:
    assert findings({}) == []


def test_rules_name_existing_keys() -> None:
    known = {f"{section}.{key}" for section, key, _ in fields()}
    assert {key for rule in RULES for key in rule.keys} <= known


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({**OFFLOAD, **UNIFORM, "offload.cpu_offloading_num_layers": 9}, "O1", "R21"),
        ({**OFFLOAD, **FULL}, "R21", "R3"),
        ({**FULL}, "R3", "R4"),
        ({**DISTRIBUTE, **SP2, "recompute.recompute_num_layers": None}, "R4", "R6"),
        ({**SELECTIVE, MODULES: ["mla_up_proj"], **FINE, OFFLOADED: []}, "R9", "F1"),
    ],
)
def test_rules_are_named_in_the_order_of_upstream(settings: Settings, first: str, second: str) -> None:
    named = rules_named(settings)
    assert named.index(first) < named.index(second)


def test_a_refusal_names_rule_and_remedy() -> None:
    error = refused({**OFFLOAD, **SELECTIVE})
    assert error.problems[0].rule == "R21"
    assert "rule R21" in str(error)
    assert "set recompute_granularity to null" in str(error)


def test_warnings_do_not_refuse() -> None:
    assert [finding.rule for finding in check(config_from_mapping(nested(SELECTIVE)).config)] == ["R18"]


def test_not_modelled_says_so() -> None:
    assert "not modelled yet N-cp-latent" in str(refused({**CP2, **LATENT}))
