"""What a search answers: the document behind ``oomscope bisect --json`` and the input of its reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.sections import CodeVsConfig, Excerpt, Narrowed, WalkedLine, Waterfall
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.steps import heaviest
from oomscope.document import Document, json_of
from oomscope.errors import ExitCode
from oomscope.probe.result import Outcome, ProbeResult
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import Bytes

SCHEMA_VERSION = 3
SearchOutcome = Literal["culprit", "no_culprit", "suspects", "ends_invalid", "inconclusive"]
OUT_OF_TIME: Final = "the deadline passed"
"""Text in the message of a search that was ended by its deadline."""
Side = Literal["good", "bad"]
Axis = Literal["commits", "config", "environment", "both"]
Role = Literal[
    "good end",
    "good end sought",
    "bad end",
    "search",
    "merged branch",
    "step",
    "key alone",
    "inside the commit",
    "corner",
]


def absent_side(*, in_good: bool, in_bad: bool) -> Side | None:
    """Return the side that lacks a key; None where both have it."""
    return None if in_good and in_bad else "bad" if in_good else "good"


@dataclass(frozen=True, kw_only=True)
class ProbeRecord(Document):
    """One question that the search asked, and its answer."""

    number: int
    """Number of the probe, from 1, in the order asked."""
    role: Role
    commit: str | None = None
    """Full hash; None in a search over configuration keys."""
    subject: str = ""
    keys: tuple[str, ...] | None = None
    """The keys that had the bad file's values; None in a search over commits."""
    answer: Answer
    reason: str
    """One line: what was seen, or why nothing could be."""
    outcome: Outcome | None = None
    """Outcome of the probe; None where nothing was run: no such file, an invalid configuration."""
    peak: Bytes | None = None
    is_lower_bound: bool = False
    """Whether the requested bytes are only those up to a failure."""
    leak_bytes: int = 0
    """Growth of requested memory with each iteration; 0 for none."""
    cached: bool = False
    wall_s: float = 0.0
    """Seconds that the search waited for it; next to nothing where it was begun ahead."""
    probe_s: float = 0.0
    """Seconds that the probe itself ran, whenever that was; 0 where nothing was run."""
    repeat: int = 0
    """Number of the measurement of the same thing, from 0."""
    log: str | None = None
    """The file with what the target said, where it failed and said something."""


@dataclass(frozen=True, kw_only=True)
class KeyChange(Document):
    """A configuration key with two values, and the bytes that it brings by itself."""

    key: str
    good: Any
    bad: Any
    delta: Bytes | None = None
    """Measured with this key (and those it cannot do without) changed in the good file; None where untestable."""
    absent_from: Side | None = None
    """The side that lacks the key, whose value is then None; a key may also have the value null."""

    @property
    def texts(self) -> tuple[str, str]:
        """Both values for people: ``(absent)`` where a side lacks the key, ``null`` for that value."""
        good, bad = ("null" if value is None else str(value) for value in (self.good, self.bad))
        return "(absent)" if self.absent_from == "good" else good, "(absent)" if self.absent_from == "bad" else bad


@dataclass(frozen=True, kw_only=True)
class CommitCulprit(Document):
    """The commit at fault."""

    commit: str
    subject: str
    author: str
    date: str
    """Author date, ISO 8601."""
    delta: Bytes
    """Difference between the last good commit and this one."""
    sites: tuple[SiteGrowth, ...]
    """Lines whose requested bytes differ; they sum to ``delta.requested_bytes``."""
    keys: tuple[KeyChange, ...] = ()
    """Keys of a configuration in the repository that the commit changed."""
    narrowed: Narrowed | None = None
    """The part of the commit that is at fault, where that was asked for and could be told."""
    message: str = ""
    """The commit's whole message; empty, as the next ones, where git lacks its files."""
    hunks: tuple[Excerpt, ...] = ()
    """The commit's change since the last good commit; part of it if it is large."""
    left_out: int = 0
    """Hunks, and files that are no text or change by thousands of lines, that are not in ``hunks``."""
    around: tuple[Excerpt, ...] = ()
    """The code around lines that grew most and that the change does not show."""


@dataclass(frozen=True, kw_only=True)
class KeysCulprit(Document):
    """A minimal set of configuration keys at fault: without any one of them the search found no failure."""

    keys: tuple[KeyChange, ...]
    delta: Bytes
    """Difference between the good file and the good file with these keys changed."""
    interaction: Bytes | None
    """Part of ``delta`` beyond the bytes of each key alone; None where one is untestable."""
    sites: tuple[SiteGrowth, ...]
    """Lines whose requested bytes differ; they sum to ``delta.requested_bytes``."""


@dataclass(frozen=True, kw_only=True)
class SuspectedChange(Document):
    """One of several changes, any of which may be at fault."""

    commit: str | None = None
    """Full hash; None for a configuration key."""
    key: str | None = None
    subject: str
    """Subject of the commit, or the two values of the key."""
    reason: str
    """Why it could not be told from the others."""


@dataclass(frozen=True, kw_only=True)
class StepRow(Document):
    """A stretch of the range and its bytes; the rows of a report sum to the difference of the ends."""

    also_written: ClassVar[tuple[str, ...]] = ("delta_overhead_bytes",)

    commit: str | None
    """The commit that closes it; None for a row of configuration keys."""
    label: str
    """Subject of the commit, or a name for the row."""
    since: str | None = None
    """The measured commit before it."""
    commits: int = 1
    """Commits in the stretch that change what is measured; with 1 the whole delta came with ``commit``."""
    merge: str | None = None
    """The merge that brought the commit in, where the search went into what a merge brought."""
    keys: tuple[str, ...] = ()
    delta: Bytes
    dominant: SiteGrowth | None = None
    """The line whose requested bytes changed most; None where they did not change, or no line is known."""
    leak_bytes: int = 0
    """Growth of requested memory with each iteration after the step; 0 for none, or where it grew before."""

    @property
    def delta_overhead_bytes(self) -> int | None:
        """What the step added beyond requested bytes."""
        return self.delta.overhead_bytes


@dataclass(frozen=True, kw_only=True)
class ProbeEvidence(Document):
    """A probe that the answer rests on, and how to repeat it."""

    name: str
    """The commit's hash, or the configuration in words."""
    result: ProbeResult
    commands: tuple[str, ...]
    """Shell commands that repeat it, to be pasted one after the other."""


@dataclass(frozen=True, kw_only=True)
class BisectResult(Document):
    """A finished search."""

    axis: Axis
    outcome: SearchOutcome
    message: str
    """The answer in one sentence."""
    good: str
    """Hash or file of the good end."""
    bad: str
    bad_class: str
    """What counted as bad: the value of ``--bad``."""
    candidates: int
    """Keys that differ, or commits between good and bad as ``git rev-list --count`` has them."""
    on_line: int
    """Commits of ``candidates`` on the line of first parents; all of the keys."""
    considered: int
    """Number of candidates searched: commits of the line that change what is measured and touch the chosen paths if
    any, or keys that can be changed apart from others."""
    paths: tuple[str, ...] = ()
    """Paths that limited the search over commits at first."""
    culprit: CommitCulprit | KeysCulprit | None = None
    square: CodeVsConfig | None = None
    """Old and new code with old and new configuration, where both were walked."""
    also: KeysCulprit | None = None
    """The keys at fault besides the commit, which is the culprit, where both code and configuration have a share."""
    suspects: tuple[SuspectedChange, ...] = ()
    change: Bytes | None = None
    """Difference between the last good probe and the first bad one, culprit or suspects; None without them."""
    sites: tuple[SiteGrowth, ...] = ()
    """Lines whose requested bytes differ between those two; they sum to ``change.requested_bytes``."""
    confidence: float | None = None
    """The probability that the answer is right, where probes were repeated."""
    steps: tuple[StepRow, ...] = ()
    waterfall: Waterfall | None = None
    """How the steps were found, where all of them were searched for."""
    probes: tuple[ProbeRecord, ...] = ()
    lines: tuple[WalkedLine, ...] = ()
    """The commits walked: the line from the good end to the bad end, then those that merges brought in."""
    cost: Cost | None = None
    lacks_a_probe: bool = False
    """Whether the deadline passed before a probe that was wanted had its answer."""
    last_good: ProbeEvidence | None = None
    first_bad: ProbeEvidence | None = None
    remedy: str | None = None
    """Remedy for an end without a file or with a wrong configuration, or for a passed deadline; None elsewhere.
    """
    notes: tuple[str, ...] = ()
    search: int | None = None
    """Number of the search, for ``oomscope bisect log`` and the like; None where no journal was kept."""
    schema_version: int = SCHEMA_VERSION

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first bad probe, with the settings tried on its allocations."""
        return self.first_bad.result.verdict if self.first_bad else None

    @property
    def is_about_reserved(self) -> bool:
        """Whether reserved bytes went bad: under ``reserved>SIZE``, and where fragmentation is the verdict."""
        quantity, is_threshold, _ = self.bad_class.partition(">")
        if is_threshold:
            return quantity == "reserved"
        return self.verdict is not None and self.verdict.kind == "fragmentation"

    def weight(self, row: StepRow) -> int:
        """Return the bytes of a step: reserved ones if those went bad, else live ones."""
        return row.delta.reserved_bytes or 0 if self.is_about_reserved else row.delta.requested_bytes

    @property
    def heaviest(self) -> StepRow | None:
        """The step over commits that weighs most."""
        rows = [row for row in self.steps if row.commit is not None]
        return heaviest(rows, self.weight, is_culprit_known=self.outcome in {"culprit", "suspects"})

    @property
    def untestable(self) -> tuple[ProbeRecord, ...]:
        """The probes without an answer."""
        return tuple(probe for probe in self.probes if probe.answer is Answer.UNTESTABLE)

    @property
    def is_out_of_time(self) -> bool:
        """Whether the deadline ended it before it had the whole answer."""
        is_cut = self.waterfall is not None and not self.waterfall.is_complete
        return is_cut or (self.exit_code is ExitCode.INCONCLUSIVE and self.lacks_a_probe)

    @property
    def exit_code(self) -> ExitCode:
        """0 where the question is answered, 7 where it is not."""
        return ExitCode.OK if self.outcome in {"culprit", "no_culprit"} else ExitCode.INCONCLUSIVE

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope bisect --json``."""
        return super().to_json() | {
            "heaviest": self.heaviest.commit if self.heaviest else None,
            "verdict": json_of(self.verdict),
            "untestable": [
                {"commit": probe.commit, "keys": probe.keys, "reason": probe.reason, "log": probe.log}
                for probe in self.untestable
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Cost(Document):
    """What a search took beside its answers."""

    wall_s: float
    """Seconds from the beginning of the search to its last answer."""
    slots: int
    """Probes that could run at once."""
    begun: int
    """Runs that were begun, those included that were foreseen and not asked for; every rank is one."""


class EndsAnswer(NamedTuple):
    """The answer that the ends alone give."""

    kind: Literal["no_culprit", "ends_invalid"]
    reason: str


def judge_ends(good: ProbeRecord, bad: ProbeRecord) -> EndsAnswer | None:
    """Return the answer that two probed ends give; None where the good one is good and the bad one bad.

    Two good ends mean that nothing is at fault. A good end that is bad, or an end that cannot be tested, means that
    the question was put wrongly.
    """
    if good.answer is Answer.UNTESTABLE:
        return EndsAnswer("ends_invalid", f"the good end cannot be tested: {good.reason}")
    if bad.answer is Answer.UNTESTABLE:
        return EndsAnswer("ends_invalid", f"the bad end cannot be tested: {bad.reason}")
    if good.answer is Answer.GOOD:
        return None if bad.answer is Answer.BAD else EndsAnswer("no_culprit", f"the bad end is good: {bad.reason}")
    if bad.answer is Answer.GOOD:
        return EndsAnswer("ends_invalid", "the good end is bad and the bad end good: swap them")
    return EndsAnswer("ends_invalid", f"the good end is bad already: {good.reason}")
