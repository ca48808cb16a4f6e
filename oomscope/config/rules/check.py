"""Which values may be combined with which: every rule is a row of one table, in the order of Megatron-Core's checks.

The rows stand in the modules by topic; :mod:`oomscope.config.load` refuses a configuration that breaks one.
"""

from __future__ import annotations

from oomscope.config.problems import Problem
from oomscope.config.rules.ignored import IGNORED
from oomscope.config.rules.measurement import MEASUREMENT_RULES
from oomscope.config.rules.model import MODEL_RULES, MOE_RULES
from oomscope.config.rules.offload import FINE_GRAINED_RULES, LAYER_OFFLOAD_RULES
from oomscope.config.rules.optimizer import OPTIMIZER_RULES, SHARDING_RULES
from oomscope.config.rules.parallel import PARALLEL_RULES
from oomscope.config.rules.pipeline import PIPELINE_RULES
from oomscope.config.rules.recompute import RECOMPUTE_RULES
from oomscope.config.rules.rule import Finding, Rule
from oomscope.config.rules.unmodelled import UNMODELLED
from oomscope.config.schema import Config

RULES: tuple[Rule, ...] = (
    *PARALLEL_RULES,
    *PIPELINE_RULES,
    *MODEL_RULES,
    *MOE_RULES,
    *LAYER_OFFLOAD_RULES,
    *RECOMPUTE_RULES,
    *FINE_GRAINED_RULES,
    *SHARDING_RULES,
    *OPTIMIZER_RULES,
    *MEASUREMENT_RULES,
    *UNMODELLED,
    *IGNORED,
)
"""All rules. Offloading of layers comes before recomputation as upstream, so that R21 is named before R3."""


def check(config: Config) -> list[Finding]:
    """Return what ``config`` breaks, errors and warnings alike, in the order of the table."""
    return [finding for rule in RULES if (finding := rule.finding(config)) is not None]


def problem_of(finding: Finding, where: str) -> Problem:
    """Return the finding as a problem at ``where``."""
    kind = "not modelled yet" if finding.severity == "not_modelled" else "rule"
    message = f"{finding.message} ({kind} {finding.rule}: {finding.source})"
    return Problem(message, where, finding.remedy, finding.rule)
