"""Searches over a thousand commits, as the search itself would ask, for the tests of their pages."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from oomscope.bisect.results.result import (
    BisectResult,
    CommitCulprit,
    Cost,
    KeyChange,
    KeysCulprit,
    ProbeRecord,
    StepRow,
)
from oomscope.bisect.results.sections import (
    LinePlace,
    UnseenStretch,
    WalkedLine,
    Waterfall,
)
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.steps import StepSearch, Threshold
from oomscope.probe.result import RunCurves
from oomscope.units import Bytes, GiB, MiB
from tests.unit.report import results, searches

HOSTILE = (
    "<script>alert('x')</script>",
    "\"quotes' & <b>tags</b>",
    "שינוי בזיכרון של השכבה (fix!)",
    "\x1b[31m\u202egnp.exe\udcff",
    "a_subject_without_a_space_" * 40,
)
"""Subjects that commits can have."""


def line_of(count: int, seed: int = 3) -> WalkedLine:
    """A line of ``count`` candidates."""
    words = ("keep", "widen", "drop", "cache", "fuse", "offload", "the", "logits", "loss", "router", "norms", "buffers")
    random = Random(seed)
    places = (
        LinePlace(
            commit=f"{random.getrandbits(160):040x}",
            subject=HOSTILE[at // 9 % len(HOSTILE)] if at % 9 == 5 else " ".join(random.choices(words, k=6)),
        )
        for at in range(count + 1)
    )
    return WalkedLine(places=tuple(places))


def curves_of(iterations: int, points: int, height: int) -> RunCurves:
    """Curves that rise and fall in each of some iterations."""
    shape = [height * min(at, points - at) * 2 // points for at in range(points)]
    live = tuple(GiB // 2 + value for _ in range(iterations) for value in shape)
    reserved = tuple(max(live[: at + 1]) + GiB // 4 for at in range(len(live)))
    return RunCurves(
        requested_bytes=live,
        reserved_bytes=reserved,
        iterations=tuple(iteration for iteration in range(iterations) for _ in shape),
    )


def thousand_commits(count: int = 1000, culprit: int = 734, *, untestable: int = 15) -> BisectResult:
    """A search for every step of a line in which ``untestable`` per cent cannot be tested; six commits change it."""
    line, random = line_of(count), Random(1)
    broken = {at for at in range(1, count) if random.randrange(100) < untestable} - {culprit, culprit - 1}
    added = {count // 9: 3, count // 4: -1, count // 3: 2, count // 2: 1, culprit: 4, count - 9: 1}

    def bytes_at(at: int) -> Bytes:
        live = 60 * GiB + sum(size for step, size in added.items() if step <= at) * 300 * MiB
        return Bytes(requested_bytes=live, reserved_bytes=live + GiB + (at > count // 2) * 60 * MiB)

    records: list[ProbeRecord] = []

    def ask(at: int, role) -> None:
        place, is_broken = line.places[at], at in broken
        bad = at >= culprit
        answer = Answer.UNTESTABLE if is_broken else Answer.BAD if bad else Answer.GOOD
        reason = "import: no module" if is_broken else "out of memory in loss (capacity)" if bad else "fits"
        records.append(
            ProbeRecord(
                number=len(records) + 1,
                role=role,
                commit=place.commit,
                subject=place.subject,
                answer=answer,
                reason=reason,
                peak=None if is_broken else bytes_at(at),
                wall_s=2.5,
            )
        )

    ask(0, "good end")
    ask(count, "bad end")
    state = StepSearch.over(count, bytes_at(0), bytes_at(count), Threshold())
    plain = state.ranges[0].search
    while (wanted := plain.wanted) is not None:
        ask(wanted, "search")
        plain = plain.with_answer(wanted, records[-1].answer)
        state = state.with_answer(wanted, records[-1].peak)
    while (wanted := state.wanted) is not None:
        ask(wanted, "step")
        state = state.with_answer(wanted, records[-1].peak)
    names = [place.commit for place in line.places]
    steps = tuple(
        StepRow(
            commit=names[step.at],
            label=line.places[step.at].subject,
            since=names[step.after],
            commits=step.at - step.after,
            merge=names[step.at + 1] if step.at == count // 4 else None,
            delta=step.delta,
            dominant=searches.SITES[0],
        )
        for step in state.steps
    )
    rest = bytes_at(count) - bytes_at(0) - sum((step.delta for step in steps), start=Bytes())
    steps = (*steps, StepRow(commit=None, label="smaller differences", delta=rest))
    found = CommitCulprit(
        commit=names[culprit],
        subject=line.places[culprit].subject,
        author="Ada Reyes",
        date="2025-01-01T00:00:00Z",
        delta=searches.CHANGE,
        sites=searches.SITES,
        narrowed=searches.NARROWED,
    )
    return replace(
        searches.COMMITS,
        good=names[0],
        bad=names[-1],
        candidates=count,
        on_line=count,
        considered=count,
        culprit=found,
        message=f"{names[culprit][:10]} is the first bad commit: out of memory in loss",
        lines=(line,),
        probes=tuple(records),
        steps=steps,
        waterfall=Waterfall(
            threshold=Threshold(),
            start=bytes_at(0),
            end=bytes_at(count),
            unseen=tuple(
                UnseenStretch(since=names[step.after], until=names[step.at], commits=step.at - step.after)
                for step in state.unseen
            ),
        ),
        cost=Cost(wall_s=301.0, slots=2, begun=140),
        last_good=replace(searches.COMMITS.last_good, result=GOOD_RUN),
        first_bad=replace(searches.COMMITS.first_bad, result=BAD_RUN),
    )


GOOD_RUN = replace(results.FITS, events=4000, curves=curves_of(4, 100, 6 * GiB))
_BAD_CURVES = curves_of(4, 100, 8 * GiB)
BAD_RUN = replace(
    results.OOM,
    events=2500,
    curves=RunCurves(
        requested_bytes=_BAD_CURVES.requested_bytes[:250],
        reserved_bytes=_BAD_CURVES.reserved_bytes[:250],
        iterations=_BAD_CURVES.iterations[:250],
    ),
)
THOUSAND = thousand_commits()


def _keys_searched() -> BisectResult:
    """A search over forty keys, three of which are at fault together."""
    names = [f"section_{at // 8}.key_{at}" for at in range(38)]
    names += ["env:PYTORCH_ALLOC_CONF/max_split_size_mb", f"package:{HOSTILE[0]}"]
    guilty, random = (names[3], names[17], names[38]), Random(5)
    tried = [(), tuple(names), *(tuple(sorted(random.sample(names, 40 >> each))) for each in (1, 2, 1, 3, 2)), guilty]
    records = []
    for number, keys in enumerate(tried, start=1):
        bad = set(guilty) <= set(keys)
        records.append(
            replace(
                searches.PROBES[1 if bad else 0],
                number=number,
                role="bad end" if number == 2 else "good end" if number == 1 else "search",
                commit=None,
                subject="",
                keys=keys,
            )
        )
    changes = tuple(KeyChange(key=key, good=1, bad=HOSTILE[1], delta=Bytes(requested_bytes=64 * MiB)) for key in guilty)
    culprit = KeysCulprit(
        keys=changes, delta=searches.CHANGE, interaction=Bytes(requested_bytes=GiB), sites=searches.SITES
    )
    return replace(
        THOUSAND,
        axis="environment",
        culprit=culprit,
        good="good.env",
        bad="bad.env",
        candidates=40,
        on_line=40,
        considered=40,
        message=", ".join(guilty),
        lines=(),
        probes=tuple(records),
        steps=(
            *(StepRow(commit=None, label=key, keys=(key,), delta=Bytes(requested_bytes=64 * MiB)) for key in guilty),
            StepRow(commit=None, label="only together", keys=guilty, delta=Bytes(requested_bytes=GiB)),
        ),
        waterfall=None,
    )


FORTY_KEYS = _keys_searched()


BOTH = replace(THOUSAND, axis="both", square=searches.SQUARE, also=searches.KEYS.culprit)
EVERY = {"commits": THOUSAND, "environment": FORTY_KEYS, "both": BOTH}
