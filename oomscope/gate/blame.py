"""Whose line is at fault: what a probe says of its options and overrides, in terms of the suite that asked for it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from oomscope.config.problems import InvalidConfigError
from oomscope.errors import OomscopeError
from oomscope.gate.suite import Case

Error = TypeVar("Error", bound=OomscopeError)
_KEYS = {
    "--world-size": "probe.world_size",
    "--harness": "harness:",
    "--entry": "entry:",
    "--command": "command:",
    "--metric-regex": "metric_regex:",
    "--snapshot-glob": "snapshot_glob:",
    "--repo": "repo:",
    "--rank": "rank:",
    "--limit": "limit:",
}
"""Options of a probe, and what a suite has in their place."""
_OPTION = re.compile(rf"(?<![\w-])(?:{'|'.join(_KEYS)})(?![\w-])")


def blamed(error: Error, case: Case) -> OomscopeError:
    """Return ``error`` of the plan of ``case`` with its place in the suite, and a remedy in the suite's words."""
    if not isinstance(error, InvalidConfigError):
        place, remedy = _place(error.where, case), _in_keys(error.remedy)
        return type(error)(error.message, where=place, remedy=remedy)
    return InvalidConfigError(
        [
            replace(problem, where=_place(problem.where, case), remedy=_in_keys(problem.remedy))
            for problem in error.problems
        ]
    )


def _place(where: str | None, case: Case) -> str:
    """Return the place in the suite for an option, an override, the preset or a file as a whole; else ``where``."""
    if not where:
        return case.place(case.kind)
    if where.startswith("override "):
        return case.places.get(where.removeprefix("override "), f"{case.where}: {where}")
    if option := _OPTION.match(where):
        key = _KEYS[option[0]].rstrip(":")
        return case.places.get(key, f"{case.where}: {key}")
    if where == f"preset {case.source}" or Path(where).absolute() == case.path.absolute():
        return f"{case.place(case.kind)}: {where}"
    return where


def _in_keys(remedy: str | None) -> str | None:
    return None if remedy is None else _OPTION.sub(lambda option: _KEYS[option[0]], remedy)
