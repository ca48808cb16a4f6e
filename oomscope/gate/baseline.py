"""The baseline: what the team has accepted, as one text file that is reviewed like code.

An entry holds for a case on one kind of machine; what is measured elsewhere has an entry of its own. The file is
sorted, so that accepting one case changes the lines of that case alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.schema.section import Section
from oomscope.config.yaml_tree import Dumper
from oomscope.gate.suite.metrics import METRICS, MOST, Bands
from oomscope.gate.suite.schema import MetricBands, MetricName, read_document
from oomscope.printable import quoted
from oomscope.probe.result import ProbeResult
from oomscope.units import format_size

SCHEMA_VERSION = 2
_HEADER = "# What the memory gate expects. `oomscope gate update` writes this file; review its changes like code.\n"
_NUMBER = re.compile(r"^ +(?P<name>[a-z_]+): (?P<value>\d+)$", re.MULTILINE)

MeasuredOutcome = Literal["fits", "oom"]


@dataclass(frozen=True, kw_only=True, order=True)
class Key:
    """What two measurements of a case have in common if they can be compared."""

    config: str
    """Digest of what the suite asks for (:attr:`oomscope.gate.suite.suite.Case.digest`)."""
    backend: str
    gpu: str
    """The card's model."""
    driver: str
    """The GPU's driver; empty on a virtual card."""
    torch: str
    """Version of torch, with its build (``+cu130``); of an entry of oomscope 0.1 maybe without."""
    allocator: str
    """The allocator's settings in force; empty for the defaults."""
    variables: str = ""
    """Other environment variables in force that change the sizes that torch allocates, as ``NAME=value``, sorted."""

    @classmethod
    def of(cls, digest: str, result: ProbeResult) -> Key:
        """Return the key of a measurement of the case with ``digest``."""
        return cls(
            config=digest,
            backend=result.backend,
            gpu=result.gpu or "",
            driver=result.versions.get("driver", ""),
            torch=result.versions.get("torch", ""),
            allocator=result.allocator_conf or "",
            variables=" ".join(f"{name}={value}" for name, value in sorted(result.variables.items())),
        )

    @property
    def card(self) -> tuple[str, str]:
        """Backend and model of the card."""
        return self.backend, self.gpu

    def matches(self, before: Key) -> bool:
        """Whether a measurement under ``before`` can be compared, which may name torch without its build."""
        return before in {self, replace(self, torch=self.torch.partition("+")[0])}

    def differences(self, before: Key) -> list[str]:
        """Return in words how ``before`` differs from this key."""
        now, then = asdict(self), asdict(before)
        return [
            "what the suite asks for has changed"
            if name == "config"
            else f"{name} {then[name] or 'none'}, now {now[name] or 'none'}"
            for name in now
            if now[name] != then[name]
        ]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is expected of a case on one kind of machine."""

    key: Key
    outcome: MeasuredOutcome
    values: Mapping[str, int]
    """Expected values by metric."""
    bands: Mapping[str, Bands] = field(default_factory=dict)
    """The bands of calibration, by metric."""
    oomscope: str = ""
    """Version of oomscope that measured it."""
    rank: str = ""
    """The rank that was measured, with its world, as ``8 of 16, stage 2 of 2``; empty in a world of one."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The entries of all cases, by name."""

    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

    def find(self, name: str, key: Key) -> Entry | None:
        """Return the entry of the case ``name`` under ``key``."""
        return next((entry for entry in self.entries.get(name, ()) if key.matches(entry.key)), None)

    def nearest(self, name: str, key: Key) -> Entry | None:
        """Return the entry of the case ``name`` whose key differs least from ``key``; None where it has none."""
        return _nearest(self.entries.get(name, ()), key)

    def nearest_on_card(self, name: str, key: Key) -> Entry | None:
        """Return the nearest of those on the same backend and card: bytes of other cards are no measure."""
        return _nearest((entry for entry in self.entries.get(name, ()) if entry.key.card == key.card), key)

    def accepting(self, accepted: Iterable[tuple[str, Entry]]) -> Baseline:
        """Return the baseline with these entries in place of those under the same names and keys.

        An entry of a case for which the suite now asks something else can never match again, and is removed.
        """
        entries = dict(self.entries)
        for name, entry in accepted:
            before = (each for each in entries.get(name, ()) if each.key.config == entry.key.config)
            kept = [each for each in before if not entry.key.matches(each.key)]
            entries[name] = tuple(sorted((*kept, entry), key=lambda each: each.key))
        return replace(self, entries=entries)

    def beyond(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the cases that have entries and are none of ``names``."""
        return tuple(sorted(set(self.entries) - set(names)))

    def without(self, names: Collection[str]) -> Baseline:
        """Return the baseline without the cases ``names``."""
        return replace(self, entries={name: rows for name, rows in self.entries.items() if name not in names})

    def to_text(self) -> str:
        """Return the file's content; the same baseline has the same text."""
        import yaml

        cases = {name: [_document(entry) for entry in rows] for name, rows in sorted(self.entries.items())}
        document = {"schema_version": SCHEMA_VERSION, "cases": cases}
        text = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000)
        return _HEADER + _NUMBER.sub(_with_size, text)


def _nearest(entries: Iterable[Entry], key: Key) -> Entry | None:
    return min(entries, key=lambda entry: len(key.differences(entry.key)), default=None)


def _document(entry: Entry) -> dict[str, Any]:
    document = {**asdict(entry.key), "outcome": entry.outcome, "oomscope": entry.oomscope, "rank": entry.rank}
    document["metrics"] = {name: entry.values[name] for name in METRICS if name in entry.values}
    document["bands"] = {
        name: {"warn": bands.warn.to_text(), "fail": bands.fail.to_text()}
        for name, bands in sorted(entry.bands.items())
    }
    return {name: value for name, value in document.items() if value or name not in {"variables", "rank", "bands"}}


def _with_size(match: re.Match[str]) -> str:
    """Return a line of bytes with a comment that shows them in KiB, MiB and so on."""
    metric = METRICS.get(match["name"])
    if metric is None or not metric.is_bytes or int(match["value"]) < 1024:
        return match[0]
    return f"{match[0]}  # {format_size(int(match['value']))}"


def _text(value: object) -> object:
    """Return a number as text: ``torch: 2.11`` in YAML is one."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]


class EntryDocument(Section):
    """An entry in the file; :class:`Key` and :class:`Entry` document the fields."""

    config: Text
    backend: Literal["virtual", "cuda", "command"]
    gpu: Text = ""
    driver: Text = ""
    torch: Text = ""
    allocator: Text = ""
    variables: Text = ""
    outcome: MeasuredOutcome = "fits"
    oomscope: Text = ""
    rank: Annotated[str, Field(max_length=100), BeforeValidator(_text)] = ""
    metrics: dict[MetricName, Annotated[int, Field(ge=0, le=MOST)]]
    bands: dict[MetricName, MetricBands] = Field(default={})

    def entry(self) -> Entry:
        """Return the entry."""
        return Entry(
            key=Key(**{each.name: getattr(self, each.name) for each in fields(Key)}),
            outcome=self.outcome,
            values=dict(self.metrics),
            bands={
                name: Bands(**{which: band for which, band in row if band is not None})
                for name, row in self.bands.items()
            },
            oomscope=self.oomscope,
            rank=self.rank,
        )


class BaselineDocument(Section):
    """A baseline file."""

    schema_version: Literal[2]
    """Version of this layout."""
    cases: dict[str, Annotated[tuple[EntryDocument, ...], Field(strict=False)]] = Field(default={})
    """The entries of each case."""


def load_baseline(path: Path) -> Baseline:
    """Return the baseline in ``path``; an empty one where there is no such file.

    Raises:
        InvalidConfigError: it cannot be read, or has a case twice under one key, as after a merge that kept both sides.
    """
    if not path.exists():
        return Baseline()
    document, _ = read_document(path, BaselineDocument)
    entries = {name: tuple(row.entry() for row in rows) for name, rows in document.cases.items()}
    for name, rows in entries.items():
        if len({entry.key for entry in rows}) < len(rows):
            message = f"{quoted(name)} has two entries for one kind of machine"
            raise InvalidConfigError([Problem(message, str(path), "keep one of them")])
    return Baseline(entries=entries)
