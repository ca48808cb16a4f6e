"""The suite: which cases the gate measures, and how far each may be from its baseline. Strict, with lines to blame."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.yaml_tree import Tree
from oomscope.errors import InputError, NothingMeasuredError
from oomscope.gate.suite.bands import Bands
from oomscope.gate.suite.document import line_of, read_document
from oomscope.gate.suite.metrics import METRICS, REQUESTED
from oomscope.gate.suite.schema import NEVER_TOLD, SOURCES, CaseDocument, MetricBands, Source, SuiteDocument
from oomscope.probe.job import OWN_KINDS, OwnKind

_DIGEST_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case with the suite's defaults in it."""

    name: str
    group: str
    """What the suite calls it; the name too, unless it is one of several ranks."""
    kind: Source
    source: str
    """The preset's name, the entry or the command, or the path as the suite has it."""
    repo: str | None
    extras: Mapping[str, str]
    """What else is said of the source: ``from``, ``metric_regex``, ``snapshot_glob``."""
    overrides: tuple[str, ...]
    """Rank and limit included, so that a probe with them is the case."""
    asked: tuple[str, ...]
    """The metrics that the suite names, which have to be measured."""
    chooses: bool = False
    """Whether these alone count, and no default ones beside them."""
    bands: Mapping[str, MetricBands]
    """What the suite says of bands, by metric."""
    folder: Path
    """The suite's folder, from which paths count."""
    where: str
    """``file:line`` of the case."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where each key and override stands, as ``file:line: key``; a key also by the override that is made of it."""

    def place(self, key: str) -> str:
        """Return where ``key`` or an override stands; the case, where neither it nor the defaults say it."""
        return self.places.get(key, self.where)

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
        """What is asked, in 16 hex digits. What the files say is no part of it: that is what a commit may change.

        Of several overrides of one key the last counts; else their order says nothing.
        """
        counting = {text.partition("=")[0].strip(): text for text in self.overrides}
        overrides = sorted(counting.values())
        asked = {"kind": self.kind, "source": self.source, "repo": self.repo, "overrides": overrides, **self.extras}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]

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

        A suite that only says beyond what to warn wants no failure inside of that.
        """
        base = measured or METRICS[metric].bands
        said = self.bands.get(metric)
        if said is None:
            return base
        warn = said.warn or base.warn
        return Bands(warn=warn, fail=said.fail or base.fail.at_least(warn))


def suite_id(path: Path) -> str:
    """Return what the ledger and results call the suite at ``path``, however it is reached."""
    return str(path.resolve())


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite file."""

    path: Path
    cases: tuple[Case, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the cases are called."""
        return tuple(case.name for case in self.cases)

    def only(self, names: tuple[str, ...]) -> Suite:
        """Return the suite with the cases called ``names`` alone, or all ranks of one; the whole where none are given.

        Raises:
            InputError: there is no such case.
        """
        known = {case.name: case for case in self.cases}
        chosen = self.expanded(names)
        for name in chosen:
            if name not in known:
                raise InputError(
                    f"no case is called {name!r}", where=str(self.path), remedy=f"cases are {', '.join(known)}"
                )
        return self if not names else Suite(path=self.path, cases=tuple(known[name] for name in chosen))

    def expanded(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``names``, each once, with the cases of all ranks for one that has several."""
        groups: dict[str, list[str]] = {}
        for case in self.cases:
            groups.setdefault(case.group, []).append(case.name)
        known = set(self.names)
        each = (one for name in names for one in ([name] if name in known else groups.get(name, [name])))
        return tuple(dict.fromkeys(each))


def load_suite(path: Path) -> Suite:
    """Return the suite in the YAML file ``path``.

    Raises:
        InvalidConfigError: it is wrong; all problems are listed, with their lines.
        NothingMeasuredError: it has no cases, so that a gate over it would be green whatever happened.
    """
    document, tree = read_document(path, SuiteDocument)
    if not document.cases:
        where = f"{path}:{line_of(tree, ('cases',))}"
        raise NothingMeasuredError("the suite has no cases", where=where, remedy="give at least one, with a name")
    rows = [_Row(document, number, path, tree) for number in range(len(document.cases))]
    cases = [case for row in rows for case in row.cases()]
    problems, first = [problem for row in rows for problem in row.problems()], dict[str, Case]()
    for case in cases:
        if (before := first.setdefault(case.name, case)) is not case:
            message = f"two cases are called {case.name!r} (the first in line {before.line})"
            problems.append(Problem(message, case.where, "give each a name of its own"))
    if problems:
        raise InvalidConfigError(problems)
    return Suite(path=path, cases=tuple(cases))


@dataclass(frozen=True)
class _Row:
    """One of the cases of a suite, with its defaults and its lines."""

    suite: SuiteDocument
    number: int
    path: Path
    tree: Tree

    @property
    def case(self) -> CaseDocument:
        return self.suite.cases[self.number]

    @property
    def metrics(self) -> dict[str, MetricBands | None]:
        return _merged(self.suite.defaults.metrics or {}, self.case.metrics or {})

    def cases(self) -> list[Case]:
        """Return the case, or of several ranks each as a case of its own."""
        name, rank = self.case.name, self._given("rank")
        if not isinstance(rank, tuple):
            return [self._made(name, rank)]
        return [self._made(f"{name} rank {one}", one) for one in rank]

    def problems(self) -> Iterator[Problem]:
        """Yield where the bands of the case and those of the defaults contradict each other."""
        for metric, bands in self.metrics.items():
            if bands is not None and bands.contradicts:
                said, remedy = NEVER_TOLD
                name = f"cases[{self.number}].metrics.{metric}"
                yield Problem(f"{name}: with the defaults {said}", self._place("metrics", metric), remedy)

    def _given(self, key: Literal["rank", "limit"]) -> Any:
        own = getattr(self.case, key)
        return getattr(self.suite.defaults, key) if own is None else own

    def _made(self, name: str, rank: int | str | None) -> Case:
        document, defaults = self.case, self.suite.defaults
        kind = next(key for key in SOURCES if getattr(document, key) is not None)
        settings = {"rank": ("probe.rank", rank), "limit": ("device.limit", self._given("limit"))}
        options = {key: f"{option}={value}" for key, (option, value) in settings.items() if value is not None}
        metrics = self.metrics
        extras = {
            "from": document.dialect,
            "metric_regex": document.metric_regex,
            "snapshot_glob": document.snapshot_glob,
        }
        return Case(
            name=name,
            group=document.name,
            kind=kind,
            source=str(getattr(document, kind)),
            repo=document.repo,
            extras={key: value for key, value in extras.items() if value is not None},
            overrides=(*defaults.overrides, *document.overrides, *options.values()),
            asked=tuple(metric for metric in METRICS if metric in metrics),
            chooses=defaults.chooses or document.chooses,
            bands={metric: bands for metric, bands in metrics.items() if bands is not None},
            folder=self.path.parent,
            where=self._place(),
            places=self._places(options),
        )

    def _place(self, *keys: str | int) -> str:
        return f"{self.path}:{line_of(self.tree, ('cases', self.number, *keys))}"

    def _places(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return where keys and overrides stand: those of the case, and what of the defaults they leave."""
        found: dict[str, str] = {}
        for start, section in ((("defaults",), self.suite.defaults), (("cases", self.number), self.case)):
            for name in section.model_fields_set:
                key = type(section).model_fields[name].alias or name
                found[key] = f"{self.path}:{line_of(self.tree, (*start, key))}: {key}"
            for number, text in enumerate(section.overrides):
                line = line_of(self.tree, (*start, "overrides", number))
                found[text] = f"{self.path}:{line}: override {text}"
        return found | {text: found[key] for key, text in options.items()}


def _merged(
    defaults: Mapping[str, MetricBands | None], own: Mapping[str, MetricBands | None]
) -> dict[str, MetricBands | None]:
    """Return the metrics of both; a band of the defaults stays where the case says none."""
    merged = dict(defaults)
    for metric, bands in own.items():
        before = merged.get(metric)
        merged[metric] = before if bands is None else bands if before is None else bands.over(before)
    return merged
