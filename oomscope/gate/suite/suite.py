"""The suite: the cases that the gate measures, and how far each may be from its baseline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.errors import InputError, NothingMeasuredError
from oomscope.gate.suite.metrics import METRICS, REQUESTED, Bands
from oomscope.gate.suite.schema import (
    SOURCES,
    CaseDocument,
    DefaultsDocument,
    MetricBands,
    Source,
    SuiteDocument,
    line_of,
    read_document,
)
from oomscope.printable import quoted
from oomscope.probe.job import OWN_KINDS, OwnKind


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case with the suite's defaults in it."""

    name: str
    kind: Source
    source: str
    """The preset's name, the entry or the command, or the path as the suite has it."""
    repo: str | None
    extras: Mapping[str, str]
    """Further keys of the source: ``from``, ``metric_regex``, ``snapshot_glob``."""
    overrides: tuple[str, ...]
    """Overrides, those of rank and limit included, so that a probe with them measures the case."""
    asked: tuple[str, ...]
    """The metrics that the suite names, which have to be measured."""
    chooses: bool = False
    """Whether ``asked`` alone counts, without the default metrics."""
    bands: Mapping[str, MetricBands]
    """The suite's bands, by metric."""
    links: tuple[str, ...] = ()
    """Paths from the folder under test that checkouts of searched commits link to."""
    setup: str = ""
    """Command that is run in each of these checkouts."""
    fixups: tuple[str, ...] = ()
    """Repairs of commits that are searched; patches lie in the suite's folder."""
    folder: Path
    """The suite's folder, from which paths count."""
    where: str
    """``file:line`` of the case."""

    @property
    def path(self) -> Path:
        """The configuration or harness file."""
        return self.folder / self.source

    @property
    def own_kind(self) -> OwnKind | None:
        """How the user's own code is reached; None for the bundled transformer."""
        return next((kind for kind in OWN_KINDS if kind == self.kind), None)

    @property
    def checkout(self) -> Path:
        """The folder under test."""
        return self.folder / self.repo if self.repo is not None else self.folder

    @property
    def line(self) -> int:
        """The line of the suite at which the case begins."""
        return int(self.where.rpartition(":")[2])

    @property
    def digest(self) -> str:
        """What is asked, as a hash; not the content of files, which is what a commit may change.

        Of several overrides of one key the last counts; else their order says nothing.
        """
        overrides = sorted({text.partition("=")[0].strip(): text for text in self.overrides}.values())
        asked = {"kind": self.kind, "source": self.source, "repo": self.repo, "overrides": overrides, **self.extras}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def counted(self) -> tuple[str, ...]:
        """The metrics that count where they are measured."""
        return tuple(name for name in METRICS if name in self.asked or (METRICS[name].by_default and not self.chooses))

    @property
    def required(self) -> tuple[str, ...]:
        """The metrics that have to be measured."""
        return self.asked if self.chooses else tuple(dict.fromkeys((REQUESTED, *self.asked)))

    def bands_of(self, metric: str, measured: Bands | None = None) -> Bands:
        """Return the bands of ``metric``: the suite's, else those that calibration ``measured``, else its own.

        Inside a ``warn`` band that the suite gives alone nothing fails.
        """
        base = measured or METRICS[metric].bands
        given = self.bands.get(metric) or MetricBands()
        warn = given.warn or base.warn
        fail = base.fail.at_least(given.warn) if given.warn else base.fail
        return Bands(warn=warn, fail=given.fail or fail)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite file."""

    path: Path
    cases: tuple[Case, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cases."""
        return tuple(case.name for case in self.cases)

    def only(self, names: tuple[str, ...]) -> Suite:
        """Return the suite with the cases called ``names`` alone; the whole where none are given.

        Raises:
            InputError: there is no such case.
        """
        known = {case.name: case for case in self.cases}
        for name in names:
            if name not in known:
                raise InputError(
                    f"no case is called {quoted(name)}", where=str(self.path), remedy=f"cases are {', '.join(known)}"
                )
        return self if not names else Suite(path=self.path, cases=tuple(known[name] for name in dict.fromkeys(names)))


def load_suite(path: Path) -> Suite:
    """Return the suite in the YAML file ``path``.

    Raises:
        InvalidConfigError: it is wrong; all problems are listed, with their lines.
        NothingMeasuredError: it has no cases, so that a gate over it would always be green.
    """
    document, tree = read_document(path, SuiteDocument)
    if not document.cases:
        where = f"{path}:{line_of(tree, ('cases',))}"
        raise NothingMeasuredError("the suite has no cases", where=where, remedy="give at least one, with a name")
    lines = [line_of(tree, ("cases", number)) for number in range(len(document.cases))]
    cases = [_case(case, document.defaults, path, line) for case, line in zip(document.cases, lines, strict=True)]
    problems, first = [], dict[str, Case]()
    for case in cases:
        if (before := first.setdefault(case.name, case)) is not case:
            message = f"two cases are called {quoted(case.name)} (the first in line {before.line})"
            problems.append(Problem(message, case.where, "give each a name of its own"))
    if problems:
        raise InvalidConfigError(problems)
    return Suite(path=path, cases=tuple(cases))


def _case(case: CaseDocument, defaults: DefaultsDocument, path: Path, line: int) -> Case:
    kind = next(key for key in SOURCES if getattr(case, key) is not None)
    is_own = kind in OWN_KINDS
    rank = defaults.rank if case.rank is None else case.rank
    limit = case.limit or defaults.limit
    options = {"probe.rank": rank, "device.limit": limit}
    extras = {"from": case.dialect, "metric_regex": case.metric_regex, "snapshot_glob": case.snapshot_glob}
    metrics = _merged(defaults.metrics or {}, case.metrics or {})
    return Case(
        name=case.name,
        kind=kind,
        source=str(getattr(case, kind)),
        repo=case.repo,
        extras={key: value for key, value in extras.items() if value is not None},
        overrides=(
            *defaults.overrides,
            *case.overrides,
            *(f"{key}={value}" for key, value in options.items() if value is not None),
        ),
        asked=tuple(metric for metric in METRICS if metric in metrics),
        chooses=defaults.chooses or case.chooses,
        bands={metric: bands for metric, bands in metrics.items() if bands is not None},
        links=(*defaults.link, *case.link) if is_own else (),
        setup=(case.setup or defaults.setup or "") if is_own else "",
        fixups=(*defaults.fixup, *case.fixup) if is_own else (),
        folder=path.parent,
        where=f"{path}:{line}",
    )


def _merged(
    defaults: Mapping[str, MetricBands | None], own: Mapping[str, MetricBands | None]
) -> dict[str, MetricBands | None]:
    """Return the metrics of both; a band of the defaults stays where the case gives none."""
    merged = dict(defaults)
    for metric, bands in own.items():
        before = merged.get(metric)
        merged[metric] = bands.over(before) if bands and before else bands or before
    return merged
