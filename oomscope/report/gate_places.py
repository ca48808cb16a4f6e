"""Where in a repository a reader is sent for a case: the line that allocates most, else that of the suite."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from oomscope.gate.result import CaseResult, GateResult
from oomscope.snapshot.sites import Site


class Place(NamedTuple):
    """A line of a file."""

    path: str
    """From the root of the repository, with slashes."""
    line: int
    """From 1."""


def place_of(case: CaseResult, night: GateResult, root: Path) -> Place:
    """Return the line for ``case`` in the repository whose folder is ``root``.

    A line of code is one of the checkout that was measured, if it lies in this repository: that which grew most with
    the culprit, else at which memory ran out, else which holds most at the peak.
    """
    site = top_site(case)
    if site is not None and site.file and case.checkout is not None:
        path = _inside(Path(case.checkout) / site.file, root)
        if path is not None:
            return Place(path, max(1, site.line))
    suite = Path(night.suite)
    return Place(_inside(suite, root) or suite.name, max(1, case.line))


def top_site(case: CaseResult) -> Site | None:
    """Return the line of code that a case is about; None where nothing was measured."""
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


def _inside(path: Path, root: Path) -> str | None:
    """Return ``path`` from ``root``, without looking at the disk; None where it lies elsewhere."""
    if not path.is_relative_to(root) or ".." in path.parts:
        return None
    return str(PurePosixPath(path.relative_to(root)))
