"""The result of a night of the gate: the document of ``oomscope gate run --json``, and what the ledger keeps."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from oomscope.document import Document, json_of
from oomscope.errors import ExitCode, InputError
from oomscope.gate.baseline import Key
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.status import Ruling, Status, Tone, ruling
from oomscope.gate.suite.identity import Home
from oomscope.probe.result import Outcome, ProbeResult
from oomscope.snapshot.sites import Site

SCHEMA_VERSION = 2
KIND = "gate"
UNEXPLAINED = "no commit explains it"
"""Start of the message of a search whose ends measure otherwise than their nights did."""
Instance = TypeVar("Instance")


def _moment(text: str) -> str:
    when = dt.datetime.fromisoformat(text)
    return when.replace(tzinfo=when.tzinfo or dt.UTC).astimezone(dt.UTC).isoformat(timespec="seconds")


QUANTITIES = {"peak_requested": "requested", "peak_reserved": "reserved"}
"""Metrics that a search for the commit knows, and their names in ``oomscope bisect --bad``."""
PathText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Moment = Annotated[str, AfterValidator(_moment)]
"""A moment in ISO 8601, in UTC, to the second."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCommit:
    """The commit of the code or configuration under measurement."""

    commit: str
    subject: str
    dirty: bool = False
    """Whether files differ from the commit, which then does not say alone what was measured."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of a file in the suite's repository."""

    path: PathText
    """Path from the root, with slashes."""
    line: int
    """Number of the line, from 1."""


@dataclass(frozen=True, kw_only=True)
class GrownLine:
    """A line of code whose requested bytes at the peak grew with a commit."""

    site: Site
    category: str
    delta_bytes: int


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The result of the search behind a confirmed regression."""

    outcome: str
    """The search's outcome; ``not searched`` where there was nothing to search."""
    message: str
    good: str = ""
    """The last green commit."""
    commit: str = ""
    """The commit at fault; empty where none was found."""
    subject: str = ""
    author: str = ""
    verdict: str = ""
    """The headline of the verdict on it, after an OOM."""
    site: str = ""
    """The line whose requested bytes grew most."""
    brought: int | None = None
    """Growth with the commit of the metric that is worse; None where the search did not measure it."""
    beyond: int | None = None
    """Distance of that metric from the baseline: more than ``brought`` where earlier commits grew too."""
    grown: tuple[GrownLine, ...] = ()
    """The lines whose requested bytes grew, most first."""
    commands: tuple[str, ...] = ()
    """Shell commands that repeat the measurement of the commit."""

    @property
    def is_unexplained(self) -> bool:
        """Whether an end of the search measured otherwise than its night did, so that no commit can be at fault."""
        return self.message.startswith(UNEXPLAINED)


@dataclass(frozen=True, kw_only=True)
class CaseResult(Document):
    """One case of a night."""

    not_written: ClassVar[tuple[str, ...]] = ("rows",)

    name: str
    status: Status
    reason: str = ""
    rows: Annotated[tuple[MetricRow, ...], Field(validation_alias="metrics")] = ()
    key: Key | None = None
    """Key under which the measurement is compared; None where there is none."""
    outcome: Outcome | None = None
    """``fits``, ``oom`` or ``error``; None where nothing was probed."""
    expected_outcome: Outcome | None = None
    values: dict[str, int] = field(default_factory=dict)
    """Every metric that was measured, also those that do not count."""
    first_values: dict[str, int] | None = None
    """The values of the first measurement, where there are two."""
    standing: MeasuredCommit | None = None
    notes: tuple[str, ...] = ()
    probe: ProbeResult | None = None
    """The measurement itself; not kept in the ledger."""
    culprit: Culprit | None = None
    line: int = 0
    """The line of the suite at which the case begins; 0 where it is not known."""
    rank: str = ""
    """The rank that was measured, with its world, as ``8 of 16, stage 2 of 2``; empty in a world of one."""
    checkout: PathText | None = None
    """The folder under test, from which the lines of a measurement count; None for the bundled transformer."""
    place: Place | None = None
    """The line of code at fault; None where none lies in the suite's repository."""

    @property
    def decisive(self) -> MetricRow | None:
        """The metric that the status rests on: the first of the gravest; None where it rests on something else."""
        return next((row for row in self.rows if row.status is self.status), None)

    @property
    def searched(self) -> MetricRow | None:
        """The first metric that is worse and that a search for the commit knows."""
        worse = (row for row in self.rows if row.status is Status.WORSE and row.name in QUANTITIES)
        return next((row for row in worse if row.expected is not None), None)

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
        """Whether something is better than the baseline, whatever else is reported of the case."""
        is_row_better = any(row.status is Status.BETTER for row in self.rows)
        is_fit = self.came_to_fit and self.status is not Status.UNCONFIRMED
        return is_row_better or is_fit or self.status is Status.BETTER

    @property
    def statuses(self) -> tuple[Status, ...]:
        """All that counts of the case: that a metric is better counts beside warnings on others."""
        return (self.status, Status.BETTER) if self.is_better else (self.status,)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return super().to_json() | {"metrics": json_of(self.rows)}


@dataclass(frozen=True, kw_only=True)
class GateResult(Document):
    """A night of the gate."""

    also_written: ClassVar[tuple[str, ...]] = ("exit_code",)

    night: str
    """Id of the night, the same in every copy."""
    started: Moment
    suite: PathText
    """The suite's file, by its absolute path."""
    baseline: PathText
    """The baseline's file, by its absolute path."""
    cases: Annotated[tuple[CaseResult, ...], Field(min_length=1)]
    home: Home | None = None
    """The suite's file in its repository, by which nights of one suite are one trend; None outside of git."""
    forge: str = ""
    """Where commits and lines of the suite's repository can be seen
    (:class:`~oomscope.bisect.vcs.forge.Forge`); empty where that is not known."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that were set and change what is allocated."""
    strict: bool = False
    oomscope: str = ""
    interrupted: bool = False
    """Whether the night was ended before all cases were measured."""
    unwatched: tuple[str, ...] = ()
    """Cases that the baseline has and the suite has not, where the whole suite was measured."""
    schema_version: int = SCHEMA_VERSION

    @property
    def ruling(self) -> Ruling:
        """The result of the night."""
        if self.interrupted:
            return Ruling(exit_code=ExitCode.INTERRUPTED, tone=Tone.BAD)
        return ruling((status for case in self.cases for status in case.statuses), strict=self.strict)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command."""
        return self.ruling.exit_code

    def ruling_of(self, case: CaseResult) -> Ruling:
        """Return the result of ``case`` alone on this night."""
        return ruling(case.statuses, strict=self.strict)

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return super().to_json() | {"kind": KIND}

    @classmethod
    def from_json(cls, document: Any, *, where: str) -> GateResult:
        """Read back what :meth:`to_json` wrote.

        Args:
            document: the parsed JSON.
            where: its name in messages.

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
        except ValueError as error:
            raise InputError(f"is not valid ({error})", where=where, remedy=remedy) from None


def with_variables(variables: Mapping[str, str], command: str) -> str:
    """Return ``command`` in an environment in which ``variables`` are set."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())), command])


_ADAPTERS: dict[object, TypeAdapter[Any]] = {}


def read(kind: type[Instance], document: object) -> Instance:
    """Return ``document``, parsed JSON, as the dataclass ``kind``.

    Raises:
        ValueError: it is not one; in one line.
    """
    adapter = _ADAPTERS.get(kind) or _ADAPTERS.setdefault(kind, TypeAdapter(kind))
    text = json.dumps(document, ensure_ascii=False).encode(errors="replace")  # for half characters in names
    try:
        made: Instance = adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    return made
