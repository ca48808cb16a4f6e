"""The suite: which cases the gate measures, and how far each may be from its baseline. Strict, with lines to blame."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.schema.section import Section
from oomscope.errors import InputError, NothingMeasuredError
from oomscope.gate.bands import Band, Bands
from oomscope.gate.document import line_of, read_document
from oomscope.gate.metrics import LIVE, METRICS
from oomscope.probe.targets import OWN_KINDS, OwnKind
from oomscope.units import parse_size

Source = Literal["preset", "config", "harness", "entry", "command"]
SOURCES: tuple[Source, ...] = ("preset", "config", *OWN_KINDS)
"""Keys of a case of which one says what is measured."""
RANKS = ("first", "last", "worst")
_DIGEST_LENGTH = 16


def _band(value: object) -> Band | None:
    if value is None or isinstance(value, Band):
        return value
    try:
        return Band.parse(value)
    except InputError as error:
        raise ValueError(str(error)) from None


def _named(value: object) -> object:
    """Turn a list of metrics into a mapping without bands."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return dict.fromkeys(value)
    return value


def known_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return ``metrics``; ValueError, for pydantic, where one is none."""
    for name in metrics:
        if name not in METRICS:
            raise ValueError(f"unknown metric {name!r}; metrics are {', '.join(METRICS)}")
    return metrics


def _size(value: object) -> object:
    if not isinstance(value, int | str) or isinstance(value, bool):
        return value
    try:
        parse_size(value)
    except InputError as error:
        raise ValueError(str(error)) from None
    return str(value)


def _rank(value: object) -> object:
    """Refuse what is no rank, in one sentence; a list of ranks becomes a tuple."""
    each = value if isinstance(value, list) else [value]
    for one in each:
        if one is not None and one not in RANKS and (not isinstance(one, int) or isinstance(one, bool)):
            raise ValueError(f"{one!r} is no rank; give a number, {', '.join(RANKS)}, or a list of ranks")
    if not isinstance(value, list):
        return value
    if not each or None in each or "worst" in each or len(set(each)) < len(each):
        raise ValueError("a list of ranks holds each once; give numbers, first or last")
    return tuple(each)


class MetricBands(Section):
    """How far one metric may be worse than its baseline."""

    warn: Annotated[Band | None, BeforeValidator(_band)] = Field(default=None)
    """Beyond this it is told (default: any difference): a size, a share, or a list of both."""
    fail: Annotated[Band | None, BeforeValidator(_band)] = Field(default=None)
    """Beyond this the gate fails."""

    def over(self, other: MetricBands) -> MetricBands:
        """Return what this says, and what ``other`` says where this says nothing."""
        return MetricBands(warn=self.warn or other.warn, fail=self.fail or other.fail)


Metrics = Annotated[dict[str, MetricBands | None] | None, BeforeValidator(_named)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Limit = Annotated[str | None, BeforeValidator(_size)]
Rank = Annotated[int | str | tuple[int | str, ...] | None, BeforeValidator(_rank)]


class _Shared(Section):
    """What a case may have, and the defaults of all cases."""

    overrides: tuple[str, ...] = Field(default=(), strict=False)
    """``section.key=value`` each; those of the defaults come first."""
    rank: Rank = None
    """The rank that is played: a number, ``first``, ``last`` or ``worst``; of a list each is a case of its own."""
    limit: Limit = None
    """A card with so many bytes in all, such as ``80GiB``."""
    metrics: Metrics = None
    """The metrics that count, as a list, or a mapping to bands, whose metrics count beside the default ones; those of a
    case are added to the defaults'."""
    _chooses: bool = PrivateAttr(default=False)

    @property
    def chooses(self) -> bool:
        """Whether the metrics are a list: then no others count."""
        return self._chooses

    @model_validator(mode="wrap")
    @classmethod
    def _keep_kind(cls, value: Any, handler: ModelWrapValidatorHandler[_Shared]) -> _Shared:
        made = handler(value)
        made._chooses = isinstance(value, dict) and isinstance(value.get("metrics"), list)
        return made

    @model_validator(mode="after")
    def _check(self) -> _Shared:
        known_metrics(self.metrics or {})
        for override in self.overrides:
            if "=" not in override:
                raise ValueError(f"override {override!r} is no section.key=value; write it with =")
        return self


class DefaultsDocument(_Shared):
    """``defaults:`` of a suite."""


class CaseDocument(_Shared):
    """One of ``cases:``."""

    name: Name
    """What reports and the baseline call it."""
    preset: str | None = None
    """The bundled transformer under a preset."""
    config: str | None = None
    """The bundled transformer under a configuration file; the path is from the suite's folder."""
    dialect: Literal["megatron", "bridge", "nemo"] | None = Field(default=None, alias="from")
    """With ``config``: whose names the file has, where not oomscope's own."""
    harness: str | None = None
    """Your own code through a harness file; the path is from the suite's folder."""
    entry: str | None = None
    """Your own code through a function of the checkout, ``pkg.module:function``."""
    command: str | None = None
    """Your own code through a command that is run in the checkout."""
    metric_regex: str | None = None
    """With ``command``: finds the bytes in what it prints, by its one group."""
    snapshot_glob: str | None = None
    """With ``command``: the memory snapshots that it writes, from the root of the checkout."""
    repo: str | None = None
    """With ``harness``, ``entry`` or ``command``: the checkout under test (default: the suite's folder)."""

    @model_validator(mode="after")
    def _check_source(self) -> CaseDocument:
        given = [key for key in SOURCES if getattr(self, key) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise ValueError(f"{said} to measure; give one of {', '.join(SOURCES)}")
        (source,) = given
        own = " or ".join(OWN_KINDS)
        for key, owner, is_given, is_owned in (
            ("repo", own, self.repo, source in OWN_KINDS),
            ("from", "config", self.dialect, source == "config"),
            ("metric_regex", "command", self.metric_regex, source == "command"),
            ("snapshot_glob", "command", self.snapshot_glob, source == "command"),
        ):
            if is_given is not None and not is_owned:
                raise ValueError(f"{key} without {owner}; name one, or leave {key} out")
        if source == "command" and (self.metric_regex is None) == (self.snapshot_glob is None):
            said = "neither" if self.metric_regex is None else "both"
            raise ValueError(f"command with {said} of metric_regex and snapshot_glob; give one: it tells the bytes")
        return self


class SuiteDocument(Section):
    """A suite file."""

    cases: tuple[CaseDocument, ...] = Field(strict=False)
    """What is measured."""
    defaults: DefaultsDocument = DefaultsDocument()
    """What all cases have, unless they say otherwise."""


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
        return self.asked if self.chooses else tuple(dict.fromkeys((LIVE, *self.asked)))

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
    lines = [line_of(tree, ("cases", number)) for number in range(len(document.cases))]
    rows = zip(document.cases, lines, strict=True)
    cases = [case for row, line in rows for case in _cases(row, document.defaults, path, line)]
    problems, first = [], dict[str, Case]()
    for case in cases:
        if (before := first.setdefault(case.name, case)) is not case:
            message = f"two cases are called {case.name!r} (the first in line {before.line})"
            problems.append(Problem(message, case.where, "give each a name of its own"))
    if problems:
        raise InvalidConfigError(problems)
    return Suite(path=path, cases=tuple(cases))


def _cases(document: CaseDocument, defaults: DefaultsDocument, path: Path, line: int) -> list[Case]:
    """Return the case, or of several ranks each as a case of its own."""
    rank = defaults.rank if document.rank is None else document.rank
    if not isinstance(rank, tuple):
        return [_case(document, defaults, path, line, name=document.name, rank=rank)]
    return [_case(document, defaults, path, line, name=f"{document.name} rank {one}", rank=one) for one in rank]


def _case(
    document: CaseDocument, defaults: DefaultsDocument, path: Path, line: int, *, name: str, rank: int | str | None
) -> Case:
    kind = next(key for key in SOURCES if getattr(document, key) is not None)
    limit = defaults.limit if document.limit is None else document.limit
    options = ("" if rank is None else f"probe.rank={rank}", "" if limit is None else f"device.limit={limit}")
    metrics = _merged(defaults.metrics or {}, document.metrics or {})
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
        overrides=(*defaults.overrides, *document.overrides, *filter(None, options)),
        asked=tuple(metric for metric in METRICS if metric in metrics),
        chooses=defaults.chooses or document.chooses,
        bands={metric: bands for metric, bands in metrics.items() if bands is not None},
        folder=path.parent,
        where=f"{path}:{line}",
    )


def _merged(
    defaults: Mapping[str, MetricBands | None], own: Mapping[str, MetricBands | None]
) -> dict[str, MetricBands | None]:
    """Return the metrics of both; a band of the defaults stays where the case says none."""
    merged = dict(defaults)
    for metric, bands in own.items():
        before = merged.get(metric)
        merged[metric] = before if bands is None else bands if before is None else bands.over(before)
    return merged
