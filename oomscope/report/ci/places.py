"""Where in a repository a reader is sent for a case: the line of code that it is about, else that of the suite."""

from __future__ import annotations

from pathlib import Path

from oomscope.gate.night.result import CaseResult, GateResult, Place


def suite_path(night: GateResult) -> str:
    """Return what the suite is called in every checkout: its path from the root of its repository, with slashes."""
    return night.home.path if night.home is not None else Path(night.suite).name


def place_of(case: CaseResult, night: GateResult) -> Place:
    """Return the line for ``case``: of code where the night knows one in the suite's repository, else of the suite."""
    return case.place or Place(path=suite_path(night), line=max(1, case.line))
