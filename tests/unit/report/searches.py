"""Searches with plausible numbers, for the tests of every report."""

from __future__ import annotations

from dataclasses import replace

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.result import (
    BisectResult,
    CommitCulprit,
    KeyChange,
    KeysCulprit,
    ProbeEvidence,
    ProbeRecord,
    StepRow,
    SuspectedChange,
)
from oomscope.bisect.results.sections import CodeVsConfig, Corner, HunkChange, Narrowed, UnseenStretch, Waterfall
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.steps import Threshold
from oomscope.units import Bytes, GiB, MiB
from tests.unit.report import results

GOOD, MIDDLE, BROKEN, BAD = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
SITES = (
    SiteGrowth(site=results.LOSS, category="temporary", before_bytes=1 * GiB, after_bytes=3 * GiB),
    SiteGrowth(site=None, category="the request that failed", before_bytes=0, after_bytes=512 * MiB),
    SiteGrowth(site=results.MLP, category="activation", before_bytes=5 * GiB, after_bytes=9 * GiB // 2),
)
CHANGE = Bytes(requested_bytes=2 * GiB, reserved_bytes=1 * GiB)
PROBES = (
    ProbeRecord(
        number=1,
        role="good end",
        commit=GOOD,
        subject="start",
        answer=Answer.GOOD,
        reason="fits, 2.00 GiB left",
        outcome="fits",
        peak=Bytes(requested_bytes=6 * GiB, reserved_bytes=7 * GiB),
        wall_s=5.2,
    ),
    ProbeRecord(
        number=2,
        role="bad end",
        commit=BAD,
        subject="a subject that goes on for longer than any line of a table would let it go on",
        answer=Answer.BAD,
        reason="out of memory in loss (fragmentation)",
        outcome="oom",
        peak=Bytes(requested_bytes=8 * GiB, reserved_bytes=8 * GiB),
        is_lower_bound=True,
        cached=True,
    ),
    ProbeRecord(
        number=3,
        role="search",
        commit=BROKEN,
        subject="forget a file",
        answer=Answer.UNTESTABLE,
        reason="import: No module named 'tinytrain.data'",
        outcome="error",
        wall_s=1.0,
    ),
)
COMMITS = BisectResult(
    axis="commits",
    outcome="culprit",
    message="dddddddddd is the first bad commit.",
    good=GOOD,
    bad=BAD,
    bad_class="any-oom",
    candidates=12,
    on_line=12,
    considered=9,
    culprit=CommitCulprit(
        commit=BAD,
        subject="keep the logits",
        author="Ada Reyes",
        date="2025-01-01T00:00:00Z",
        delta=CHANGE,
        sites=SITES,
    ),
    change=CHANGE,
    sites=SITES,
    steps=(
        StepRow(
            commit=MIDDLE,
            label="longer",
            since=GOOD,
            commits=8,
            delta=Bytes(requested_bytes=3 * GiB, reserved_bytes=2 * GiB),
        ),
        StepRow(
            commit=BAD, label="keep the logits", since=MIDDLE, delta=Bytes(requested_bytes=-GiB, reserved_bytes=-GiB)
        ),
    ),
    probes=PROBES,
    last_good=ProbeEvidence(
        name=MIDDLE, result=results.FITS, commands=("git clone --shared repo copy", "oomscope probe 1")
    ),
    first_bad=ProbeEvidence(name=BAD, result=results.OOM, commands=("oomscope probe 2",)),
    notes=("two merges were walked along their first parent",),
)
SUSPECTS = replace(
    COMMITS,
    outcome="suspects",
    message="one of 2 commits",
    culprit=None,
    suspects=(
        SuspectedChange(commit=BROKEN, subject="forget a file", reason="import error"),
        SuspectedChange(commit=BAD, subject="keep the logits", reason="bad, but its parent cannot be tested"),
    ),
)
NO_CULPRIT = replace(
    COMMITS, outcome="no_culprit", message="both ends fit", culprit=None, change=None, sites=(), first_bad=None
)
NO_ANSWER = replace(
    COMMITS,
    outcome="inconclusive",
    message="the deadline passed before both ends were checked",
    culprit=None,
    change=None,
    sites=(),
    steps=(),
    probes=PROBES[:1],
    last_good=None,
    first_bad=None,
)
UNTESTABLE_END = replace(
    NO_ANSWER,
    outcome="ends_invalid",
    message="the bad end cannot be tested: import",
    probes=(PROBES[0], replace(PROBES[2], role="bad end")),
)
KEYS = replace(
    COMMITS,
    axis="config",
    culprit=KeysCulprit(
        keys=(
            KeyChange(key="data.seq_length", good=1024, bad=4096, delta=CHANGE),
            KeyChange(key="recompute.recompute_granularity", good="full", bad=None),
        ),
        delta=CHANGE,
        interaction=None,
        sites=SITES,
    ),
    steps=(StepRow(commit=None, label="keys", keys=("data.seq_length",), delta=CHANGE),),
    probes=(replace(PROBES[0], commit=None, keys=()), replace(PROBES[1], commit=None, keys=("data.seq_length",))),
)
STEPS = replace(
    COMMITS,
    steps=(
        replace(COMMITS.steps[0], commits=1, dominant=SITES[0]),
        COMMITS.steps[1],
        StepRow(commit=None, label="smaller differences", delta=Bytes(requested_bytes=0, reserved_bytes=-4 * MiB)),
    ),
    waterfall=Waterfall(
        threshold=Threshold(),
        start=Bytes(requested_bytes=6 * GiB, reserved_bytes=7 * GiB),
        end=Bytes(requested_bytes=8 * GiB, reserved_bytes=8 * GiB - 4 * MiB),
        unseen=(
            UnseenStretch(since=GOOD, until=BROKEN, commits=5),
            UnseenStretch(since=BROKEN, until=MIDDLE, commits=1),
        ),
    ),
)
EVERY = (COMMITS, SUSPECTS, NO_CULPRIT, NO_ANSWER, UNTESTABLE_END, KEYS)


def hunk(name: str, **fields: object) -> HunkChange:
    given: dict[str, object] = {"number": 1, "is_guilty": True, "delta": None, "sites": (), "section": "", **fields}
    return HunkChange(name=name, path=name.partition(" ")[0], **given)  # type: ignore[arg-type]


def size(live: int) -> Bytes:
    return Bytes(requested_bytes=live, reserved_bytes=live)


NARROWED = Narrowed(
    candidates=41,
    hunks=(
        hunk("loss.py @@ -8,7 +8,9 @@", section="def loss(logits):", delta=size(GiB)),
        hunk("model.py @@ -1,3 +1,3 @@"),
        hunk("data.py", is_guilty=False, sites=SITES[:1]),
    ),
    delta=size(2 * GiB),
    interaction=size(GiB),
    rest=size(-MiB),
)


def corner(code: str, config: str, answer: Answer, live: int | None) -> Corner:
    measured = None if live is None else size(live * GiB)
    return Corner(code=code, config=config, answer=answer, reason=f"seen {live}", peak=measured)


SQUARE = CodeVsConfig(
    path="conf/train.yaml",
    old_old=corner(GOOD, GOOD, Answer.GOOD, 1),
    new_old=corner(BAD, GOOD, Answer.GOOD, 2),
    old_new=corner(GOOD, BAD, Answer.GOOD, 4),
    new_new=corner(BAD, BAD, Answer.BAD, 9),
)
