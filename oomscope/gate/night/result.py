"""What a night of the gate found: the document of ``oomscope gate run --json``, and what the ledger keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from oomscope.errors import ExitCode, InputError
from oomscope.gate.baseline import Key
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.reading import Moment, Numbers, PathText, of_kind, read
from oomscope.gate.night.status import Ruling, Status, Tone, ruling
from oomscope.gate.suite.identity import Home
from oomscope.probe.result import Outcome, ProbeResult
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

    path: PathText
    """From the root, with slashes."""
    line: int
    """From 1."""


@dataclass(frozen=True, kw_only=True)
class GrownLine:
    """A line of code whose requested bytes at the peak grew with a commit."""

    site: Site
    category: str
    delta_bytes: int


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


def _probe(document: Any) -> ProbeResult | None:
    if not document:
        return None
    try:
        return of_kind(ProbeResult.from_json(document))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """One case of a night."""

    name: str
    status: Status
    reason: str = ""
    rows: Annotated[tuple[MetricRow, ...], Field(validation_alias="metrics")] = ()
    key: Key | None = None
    """What the measurement can be compared under; None where there is none."""
    outcome: Outcome | None = None
    """``fits``, ``oom`` or ``error``; None where nothing was probed."""
    expected_outcome: Outcome | None = None
    values: Numbers = field(default_factory=dict)
    """Every metric that was measured, also those that do not count."""
    first_values: Numbers | None = None
    """What was measured before, where the case was measured again."""
    standing: Standing | None = None
    notes: tuple[str, ...] = ()
    probe: Annotated[ProbeResult | None, PlainValidator(_probe)] = None
    """The measurement itself; not kept in the ledger."""
    culprit: Culprit | None = None
    line: int = 0
    """The line of the suite at which the case begins; 0 where it is not known."""
    rank: str = ""
    """The rank that was measured, with its world, as ``8 of 16, stage 2 of 2``; empty in a world of one."""
    checkout: PathText | None = None
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
    def from_json(cls, document: object) -> CaseResult:
        """Read back what :meth:`to_json` wrote.

        Raises:
            ValueError: it is no such document.
        """
        return read(cls, document)


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """A night of the gate."""

    night: str
    """Its id: the same document is the same night wherever it is read again."""
    started: Moment
    """ISO 8601, UTC."""
    suite: PathText
    """The suite's file, by its absolute path."""
    baseline: PathText
    """What was accepted, by its absolute path."""
    cases: Annotated[tuple[CaseResult, ...], Field(min_length=1)]
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
            "home": asdict(self.home) if self.home else None,
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
            raise InputError("is not a result of the gate", where=where, remedy=remedy)
        if document.get("schema_version") != SCHEMA_VERSION:
            version = document.get("schema_version")
            raise InputError(f"has schema version {version!r}, not {SCHEMA_VERSION}", where=where, remedy=remedy)
        try:
            return read(cls, document)
        except (TypeError, ValueError) as error:
            raise InputError(f"is not whole ({error})", where=where, remedy=remedy) from None
