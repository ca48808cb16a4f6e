"""The suite: which cases the gate measures, and how far each may be from its baseline. Strict, with lines to blame."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.schema.section import Section
from oomscope.errors import InputError, NothingMeasuredError
from oomscope.gate.bands import Band, Bands
from oomscope.gate.document import line_of, read_document
from oomscope.gate.metrics import METRICS
from oomscope.units import parse_size

SOURCES = ("preset", "config", "harness")
"""Keys of a case of which one says what is measured."""
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


class MetricBands(Section):
    """How far one metric may be worse than its baseline."""

    warn: Annotated[Band | None, BeforeValidator(_band)] = Field(default=None)
    """Beyond this it is told (default: any difference): a size, a share, or a list of both."""
    fail: Annotated[Band | None, BeforeValidator(_band)] = Field(default=None)
    """Beyond this the gate fails."""


Metrics = Annotated[dict[str, MetricBands | None] | None, BeforeValidator(_named)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Limit = Annotated[str | None, BeforeValidator(_size)]
Rank = int | Literal["first", "last", "worst"] | None


class _Shared(Section):
    """What a case may have, and the defaults of all cases."""

    overrides: tuple[str, ...] = Field(default=(), strict=False)
    """``section.key=value`` each; those of the defaults come first."""
    rank: Rank = None
    """The rank that is played: a number, ``first``, ``last`` or ``worst``."""
    limit: Limit = None
    """A card with so many bytes in all, such as ``80GiB``."""
    metrics: Metrics = None
    """The metrics that count: a list, or a mapping to bands; those of a case are added to the defaults'."""

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
    harness: str | None = None
    """Your own code through a harness file; the path is from the suite's folder."""
    repo: str | None = None
    """With ``harness``: the checkout under test (default: the suite's folder)."""

    @model_validator(mode="after")
    def _check_source(self) -> CaseDocument:
        given = [key for key in SOURCES if getattr(self, key) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise ValueError(f"{said} to measure; give one of {', '.join(SOURCES)}")
        if self.repo is not None and self.harness is None:
            raise ValueError("repo without harness; name a harness file, or leave repo out")
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
    kind: Literal["preset", "config", "harness"]
    source: str
    """The preset's name, or the path as the suite has it."""
    repo: str | None
    overrides: tuple[str, ...]
    """Rank and limit included, so that a probe with them is the case."""
    asked: tuple[str, ...]
    """The metrics that the suite names; empty for the default ones."""
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
        asked = {"kind": self.kind, "source": self.source, "repo": self.repo, "overrides": overrides}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]

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
        """Return the suite with the cases called ``names`` alone; all of them where none are given.

        Raises:
            InputError: there is no such case.
        """
        known = {case.name: case for case in self.cases}
        for name in names:
            if name not in known:
                raise InputError(
                    f"no case is called {name!r}", where=str(self.path), remedy=f"cases are {', '.join(known)}"
                )
        return self if not names else Suite(path=self.path, cases=tuple(known[name] for name in dict.fromkeys(names)))


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
    problems, first = [], dict[str, int]()
    for case, line in zip(document.cases, lines, strict=True):
        if first.setdefault(case.name, line) != line:
            message = f"two cases are called {case.name!r} (the first in line {first[case.name]})"
            problems.append(Problem(message, f"{path}:{line}", "give each a name of its own"))
    if problems:
        raise InvalidConfigError(problems)
    cases = (_case(case, document.defaults, path, line) for case, line in zip(document.cases, lines, strict=True))
    return Suite(path=path, cases=tuple(cases))


def _case(document: CaseDocument, defaults: DefaultsDocument, path: Path, line: int) -> Case:
    kind: Literal["preset", "config", "harness"] = (
        "preset" if document.preset is not None else "config" if document.config is not None else "harness"
    )
    rank = defaults.rank if document.rank is None else document.rank
    limit = defaults.limit if document.limit is None else document.limit
    options = ("" if rank is None else f"probe.rank={rank}", "" if limit is None else f"device.limit={limit}")
    metrics = {**(defaults.metrics or {}), **(document.metrics or {})}
    return Case(
        name=document.name,
        kind=kind,
        source=str(getattr(document, kind)),
        repo=document.repo,
        overrides=(*defaults.overrides, *document.overrides, *filter(None, options)),
        asked=tuple(name for name in METRICS if name in metrics),
        bands={name: bands for name, bands in metrics.items() if bands is not None},
        folder=path.parent,
        where=f"{path}:{line}",
    )
