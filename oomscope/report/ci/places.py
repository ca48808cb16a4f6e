"""Where in a repository a reader is sent for a case: the line of code that it is about, else that of the suite."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from oomscope.gate.result import CaseResult, GateResult, Place
from oomscope.snapshot.sites import Site


def suite_path(night: GateResult) -> str:
    """Return what the suite is called in every checkout: its path from the root of its repository, with slashes."""
    return night.home.path if night.home is not None else Path(night.suite).name


def place_of(case: CaseResult, night: GateResult) -> Place:
    """Return the line for ``case``: of code where the night knows one in the suite's repository, else of the suite."""
    return case.place or Place(path=suite_path(night), line=max(1, case.line))


def top_site(case: CaseResult) -> Site | None:
    """Return the line of code that a case is about; None where nothing was measured.

    That is the line which grew most with the culprit, else at which memory ran out, else which holds most at the peak.
    """
    if case.culprit is not None and case.culprit.grown:
        return case.culprit.grown[0].site
    if case.probe is None:
        return None
    if case.probe.oom is not None and case.probe.oom.site is not None:
        return case.probe.oom.site
    held: Counter[Site] = Counter()
    for row in case.probe.peak.sites if case.probe.peak is not None else ():
        held[row.site] += row.bytes
    return held.most_common(1)[0][0] if held else None
