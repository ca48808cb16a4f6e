"""What a night of the gate found: the document of ``oomscope gate run --json``, and what the ledger keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from oomscope.errors import ExitCode, InputError
from oomscope.gate.baseline import Key
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.status import Ruling, Status, Tone, ruling
from oomscope.gate.suite import reading
from oomscope.gate.suite.identity import Home
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.sites import Site

SCHEMA_VERSION = 2
KIND = "gate"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where in its history the code or configuration under measurement stands."""

    commit: str
    subject: str
    dirty: bool = False
    """Files differ from the commit, so that it alone does not say what was measured."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of a file in the suite's repository."""

    path: str
    """From the root, with slashes."""
    line: int
    """From 1."""

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Place:
        """Read back what ``dataclasses.asdict`` made of it."""
        return cls(path=reading.place(document["path"]), line=reading.whole(document["line"]))


@dataclass(frozen=True, kw_only=True)
class GrownLine:
    """A line of code whose requested bytes at the peak grew with a commit."""

    site: Site
    category: str
    delta_bytes: int

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> GrownLine:
        """Read back what ``dataclasses.asdict`` made of it."""
        site = document["site"]
        names = reading.texts({name: value for name, value in site.items() if name != "line"})
        return cls(
            site=Site(line=reading.whole(site["line"]), **names),
            category=reading.text(document["category"]),
            delta_bytes=reading.whole(document["delta_bytes"]),
        )


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """What the search behind a confirmed regression found."""

    outcome: str
    """The search's outcome; ``not searched`` where there was nothing to search."""
    message: str
    good: str = ""
    """The last green commit."""
    commit: str = ""
    """The commit at fault; empty where none could be named."""
    subject: str = ""
    author: str = ""
    verdict: str = ""
    """The headline of the verdict on it, after an OOM."""
    site: str = ""
    """The line whose requested bytes grew most."""
    brought: int | None = None
    """By how much the metric that is worse grew with the commit; None where the search measured none such."""
    beyond: int | None = None
    """By how much that metric is beyond the baseline: more than ``brought`` where earlier commits grew too."""
    grown: tuple[GrownLine, ...] = ()
    """The lines whose requested bytes grew, most first."""
    commands: tuple[str, ...] = ()
    """Shell commands that repeat the measurement of the commit."""

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Culprit:
        """Read back what ``dataclasses.asdict`` made of it."""
        plain = {name: value for name, value in document.items() if name not in {"grown", "commands"}}
        counts = {one.name for one in fields(cls) if one.default is None}
        read: dict[str, Any] = {
            name: reading.number(value) if name in counts else reading.text(value) for name, value in plain.items()
        }
        grown = tuple(GrownLine.from_json(row) for row in document.get("grown", ()))
        commands = tuple(reading.text(command) for command in document.get("commands", ()))
        return cls(**read, grown=grown, commands=commands)


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """One case of a night."""

    name: str
    status: Status
    reason: str = ""
    rows: tuple[MetricRow, ...] = ()
    key: Key | None = None
    """What the measurement can be compared under; None where there is none."""
    outcome: str | None = None
    """``fits``, ``oom`` or ``error``; None where nothing was probed."""
    expected_outcome: str | None = None
    values: Mapping[str, int] = field(default_factory=dict)
    """Every metric that was measured, also those that do not count."""
    first_values: Mapping[str, int] | None = None
    """What was measured before, where the case was measured again."""
    standing: Standing | None = None
    notes: tuple[str, ...] = ()
    probe: ProbeResult | None = None
    """The measurement itself; not kept in the ledger."""
    culprit: Culprit | None = None
    line: int = 0
    """The line of the suite at which the case begins; 0 where it is not known."""
    rank: str = ""
    """The rank that was measured, with its world, as ``8 of 16, stage 2 of 2``; empty in a world of one."""
    checkout: str | None = None
    """The folder under test, from which the lines of a measurement count; None for the bundled transformer."""
    place: Place | None = None
    """The line of code that it is about; None where git knows none in the suite's repository."""

    @property
    def decisive(self) -> MetricRow | None:
        """The metric that the status rests on: the first of the gravest; None where it rests on something else."""
        return next((row for row in self.rows if row.status is self.status), None)

    @property
    def ran_out(self) -> bool:
        """Whether it went out of memory where it fitted: worse, whatever its metrics are."""
        return self.outcome == "oom" and self.expected_outcome == "fits"

    @property
    def came_to_fit(self) -> bool:
        """Whether it fits where it went out of memory."""
        return self.outcome == "fits" and self.expected_outcome == "oom"

    @property
    def is_better(self) -> bool:
        """Whether something is better than the baseline, whatever else is said of the case."""
        is_row_better = any(row.status is Status.BETTER for row in self.rows)
        is_taken_for_it = self.came_to_fit and self.status is not Status.UNCONFIRMED
        return self.status is Status.BETTER or is_row_better or is_taken_for_it

    @property
    def statuses(self) -> tuple[Status, ...]:
        """All that counts of the case: that a metric is better counts beside what is merely told of others."""
        return (self.status, Status.BETTER) if self.is_better else (self.status,)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.name,
            "status": str(self.status),
            "reason": self.reason,
            "outcome": self.outcome,
            "expected_outcome": self.expected_outcome,
            "key": asdict(self.key) if self.key else None,
            "metrics": [row.to_json() for row in self.rows],
            "values": dict(self.values),
            "first_values": None if self.first_values is None else dict(self.first_values),
            "standing": asdict(self.standing) if self.standing else None,
            "notes": list(self.notes),
            "culprit": asdict(self.culprit) if self.culprit else None,
            "line": self.line,
            "rank": self.rank,
            "checkout": self.checkout,
            "place": asdict(self.place) if self.place else None,
            "probe": self.probe.to_json() if self.probe else None,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> CaseResult:
        """Read back what :meth:`to_json` wrote."""
        key, standing, culprit = document["key"], document["standing"], document["culprit"]
        first = document["first_values"]
        return cls(
            name=reading.text(document["name"]),
            status=Status(document["status"]),
            reason=reading.text(document["reason"]),
            outcome=_outcome(document["outcome"]),
            expected_outcome=_outcome(document["expected_outcome"]),
            key=Key(**reading.texts(key)) if key else None,
            rows=tuple(_row(row) for row in document["metrics"]),
            values=reading.numbers(document["values"]),
            first_values=None if first is None else reading.numbers(first),
            standing=_standing(standing) if standing else None,
            notes=tuple(reading.text(note) for note in document["notes"]),
            culprit=Culprit.from_json(culprit) if culprit else None,
            line=reading.whole(document.get("line", 0)),
            rank=reading.text(document.get("rank", "")),
            checkout=None if document.get("checkout") is None else reading.place(document["checkout"]),
            place=Place.from_json(place) if (place := document.get("place")) else None,
            probe=_probe(document["probe"]),
        )


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """A night of the gate."""

    night: str
    """Its id: the same document is the same night wherever it is read again."""
    started: str
    """ISO 8601, UTC."""
    suite: str
    """The suite's file, by its absolute path."""
    baseline: str
    """What was accepted, by its absolute path."""
    cases: tuple[CaseResult, ...]
    home: Home | None = None
    """The suite's file in its repository, by which nights of one suite are one trend; None outside of git."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of the environment that were set and change what is allocated."""
    strict: bool = False
    oomscope: str = ""
    interrupted: bool = False
    """It was ended before all cases were measured."""
    unwatched: tuple[str, ...] = ()
    """Cases that the baseline has and the suite has not, where the whole suite was measured."""
    schema_version: int = SCHEMA_VERSION

    @property
    def ruling(self) -> Ruling:
        """What the night comes to."""
        if self.interrupted:
            return Ruling(exit_code=ExitCode.INTERRUPTED, tone=Tone.BAD)
        return ruling((status for case in self.cases for status in case.statuses), strict=self.strict)

    @property
    def exit_code(self) -> ExitCode:
        """What the command returns."""
        return self.ruling.exit_code

    def ruling_of(self, case: CaseResult) -> Ruling:
        """Return what ``case`` alone comes to on this night."""
        return ruling(case.statuses, strict=self.strict)

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "schema_version": self.schema_version,
            "kind": KIND,
            "night": self.night,
            "started": self.started,
            "suite": self.suite,
            "home": self.home.to_json() if self.home else None,
            "baseline": self.baseline,
            "variables": dict(self.variables),
            "strict": self.strict,
            "oomscope": self.oomscope,
            "exit_code": int(self.exit_code),
            "interrupted": self.interrupted,
            "unwatched": list(self.unwatched),
            "cases": [case.to_json() for case in self.cases],
        }

    @classmethod
    def from_json(cls, document: Any, *, where: str) -> GateResult:
        """Read back what :meth:`to_json` wrote.

        Args:
            document: the parsed JSON.
            where: how messages name it.

        Raises:
            InputError: it is no such document.
        """
        remedy = "give a file that oomscope gate run --json wrote"
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise InputError("is no result of the gate", where=where, remedy=remedy)
        if document.get("schema_version") != SCHEMA_VERSION:
            version = document.get("schema_version")
            raise InputError(f"has schema version {version!r}, not {SCHEMA_VERSION}", where=where, remedy=remedy)
        try:
            return cls(
                night=reading.text(document["night"]),
                started=reading.moment(document["started"]),
                suite=reading.place(document["suite"]),
                home=Home.from_json(home) if (home := document.get("home")) else None,
                baseline=reading.place(document["baseline"]),
                variables=reading.texts(document.get("variables", {})),
                strict=reading.flag(document["strict"]),
                oomscope=reading.text(document["oomscope"]),
                interrupted=reading.flag(document.get("interrupted", False)),
                unwatched=tuple(reading.text(name) for name in document.get("unwatched", ())),
                cases=tuple(CaseResult.from_json(case) for case in reading.rows(document["cases"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(f"is not whole ({type(error).__name__}: {error})", where=where, remedy=remedy) from None


def _row(document: dict[str, Any]) -> MetricRow:
    """Read a row back; of a metric that another version knows, too."""
    numbers = {name: reading.number(document.get(name)) for name in ("expected", "measured", "warn", "fail")}
    return MetricRow(name=reading.text(document["name"]), status=Status(document["status"]), **numbers)


def _standing(document: dict[str, Any]) -> Standing:
    texts = reading.texts({"commit": document["commit"], "subject": document["subject"]})
    return Standing(**texts, dirty=reading.flag(document["dirty"]))


def _outcome(value: object) -> str | None:
    if value not in {None, "fits", "oom", "error"}:
        raise ValueError(f"{value!r} is no outcome")
    return None if value is None else str(value)


def _probe(document: Any) -> ProbeResult | None:
    if not document:
        return None
    _outcome(document["outcome"])
    return reading.of_kind(ProbeResult.from_json(reading.bounded(document)))
