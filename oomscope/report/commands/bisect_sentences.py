"""The sentences of a search: what was probed, what is at fault and by how much, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.predicate import bad_text
from oomscope.bisect.results.result import (
    BisectResult,
    CommitCulprit,
    KeyChange,
    KeysCulprit,
    ProbeRecord,
    StepRow,
    SuspectedChange,
)
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import bytes_of
from oomscope.probe.result import ProbeResult
from oomscope.report.sentences import count, in_module, known_size, short_hash, site_text
from oomscope.units import Bytes, MiB, format_size

OUTCOMES = {
    "culprit": "CULPRIT FOUND",
    "no_culprit": "NO CULPRIT",
    "suspects": "ONLY SUSPECTS",
    "ends_invalid": "THE ENDS DO NOT DIFFER AS ASKED",
    "inconclusive": "NO ANSWER",
}
WALKED = {
    "commits": ("commit", "commits"),
    "both": ("commit", "commits"),
    "config": ("key", "keys"),
    "environment": ("change of the environment", "changes of the environment"),
}
"""Names of one and of several candidates of a search, by its axis."""
UNTESTABLE_END = "AN END CANNOT BE TESTED"
_COMMIT_AXES = frozenset({"commits", "both"})


def heading(result: BisectResult) -> str:
    """Return the answer in a few capital letters, with the culprit where there is one."""
    ends = {record.role for record in result.untestable} & {"good end", "bad end"}
    if result.outcome == "ends_invalid" and ends:
        return UNTESTABLE_END
    if _is_answered_by_steps(result):
        found = sum(step.commit is not None for step in result.steps)  # the others are the row of small differences
        return f"{count(found, 'STEP', 'STEPS')} FOUND" if found else "NO STEP FOUND"
    text = OUTCOMES[result.outcome]
    return f"{text}: {culprit_title(result.culprit)}" if result.culprit else text


def message(result: BisectResult) -> str:
    """Return the sentence below the heading: why the answer is what it is, or what the steps come to."""
    if not _is_answered_by_steps(result) or result.waterfall is None:
        return result.message
    change = result.waterfall.end - result.waterfall.start
    requested, overhead = (known_size(size, signed=True) for size in (change.requested_bytes, change.overhead_bytes))
    return (
        f"Both ends are good (bad = {bad_text(result.bad_class)}). From first to last, requested memory changes "
        f"by {requested} and overhead by {overhead}."
    )


def _is_answered_by_steps(result: BisectResult) -> bool:
    """Whether steps were asked for, and there is no culprit beside them."""
    return result.outcome == "no_culprit" and result.waterfall is not None


def probe_name(record: ProbeRecord) -> str:
    """Return which commit or keys were probed."""
    if record.commit is not None:
        return f"{short_hash(record.commit)} {record.subject}"
    if record.keys is None:
        return record.subject or record.role
    if record.role == "inside the commit" and record.subject:
        return record.subject
    what = "changes" if record.role == "inside the commit" else "keys"
    return keys_text(record.keys, what=what) if record.keys else "no key changed"


def took_text(record: ProbeRecord) -> str:
    """Return how long the probe took, or ``cached``; a probe started ahead reports its own duration, not the wait."""
    if record.cached:
        return "cached"
    return f"{max(record.wall_s, record.probe_s):.1f} s{', begun ahead' if record.probe_s > record.wall_s else ''}"


def suspect_name(suspect: SuspectedChange) -> str:
    """Return the beginning of the commit's hash, or the key."""
    return suspect.key or short_hash(suspect.commit or "")


def keys_text(keys: tuple[str, ...], shown: int = 2, what: str = "keys") -> str:
    """Return a few keys by name; of more how many, the first and the last, by which two sets are distinguished."""
    if len(keys) <= shown:
        return ", ".join(keys)
    return f"{len(keys)} {what}, {keys[0]} … {keys[-1]}"


def keys_title(changes: Sequence[KeyChange]) -> str:
    """Return the heading for a table of ``changes``, which may be variables and packages too."""
    outside = any(change.key.startswith(("env:", "package:")) for change in changes)
    return "Keys, variables and packages" if outside else "Configuration keys"


def culprit_title(culprit: CommitCulprit | KeysCulprit) -> str:
    """Return the commit's hash and subject, or the keys."""
    if isinstance(culprit, CommitCulprit):
        return f"{short_hash(culprit.commit)} {culprit.subject}"
    return ", ".join(change.key for change in culprit.keys)


def guilty_commit(result: BisectResult) -> str | None:
    """Return the hash of the commit at fault; None where none is, or where keys are."""
    return result.culprit.commit if isinstance(result.culprit, CommitCulprit) else None


def before_and_after(result: BisectResult) -> list[tuple[str, str]]:
    """Return requested and reserved bytes of the last good and the first bad probe, and their rank."""
    if result.last_good is None or result.first_bad is None:
        return []
    probes = (result.last_good.result, result.first_bad.result)
    before, after = (bytes_of(probe) for probe in probes)
    if before is None or after is None:
        return []
    if before.reserved_bytes is None or after.reserved_bytes is None:
        reserved = "not known: the command printed a number of requested bytes alone"
    else:
        reserved = _change(before.reserved_bytes, after.reserved_bytes)
        reserved += ", on a card without a limit" if any(probe.demand_peak for probe in probes) else ""
    rows = [("Requested", _change(before.requested_bytes, after.requested_bytes)), ("Reserved", reserved)]
    return [*rows, *_ranks(*probes)]


def _ranks(before: ProbeResult, after: ProbeResult) -> list[tuple[str, str]]:
    """Return which rank either probe reports, where a world has several."""
    if max(before.world_size, after.world_size) == 1:
        return []
    names = [f"{probe.rank} of {probe.world_size}" for probe in (before, after)]
    same = names[0] if names[0] == names[1] else " → ".join(names)
    chosen = ", the worst measured" if len(before.ranks) > 1 or len(after.ranks) > 1 else ""
    return [("Rank", same + chosen)]


def _change(before: int, after: int) -> str:
    return f"{format_size(before)} → {format_size(after)} ({format_size(after - before, signed=True)})"


def delta_text(delta: Bytes | None) -> str:
    """Return ``requested +1.00 GiB, reserved +1.46 GiB``, or as much of it as is known."""
    if delta is None:
        return "not measured"
    live = f"requested {format_size(delta.requested_bytes, signed=True)}"
    if delta.reserved_bytes is None:
        return live
    return f"{live}, reserved {format_size(delta.reserved_bytes, signed=True)}"


def step_text(step: StepRow) -> str:
    """Return the commit or keys that a step came with, or how many commits it spans."""
    if step.commit is None:
        return step.label
    text = f"{short_hash(step.commit)} {step.label}"
    if step.commits > 1:
        text = f"{count(step.commits, 'commit')} up to {text}"
    return f"{text} (merged by {short_hash(step.merge)})" if step.merge else text


def pinned_text(result: BisectResult) -> str | None:
    """Return why a run failed by fragmentation whose peaks are those of the last good run; None for all others."""
    if result.change is None or not result.change.is_nothing or result.last_good is None or result.verdict is None:
        return None
    if result.verdict.kind != "fragmentation" or not result.last_good.result.num_alloc_retries:
        return None
    pinned = format_size(result.verdict.reserved_bytes - result.verdict.live_requested_bytes)
    return (
        "Neither peak changes: the last good run fits only because the allocator can give back cached memory; in the "
        f"first bad run live blocks keep it from giving back {pinned}."
    )


def heaviest_step(result: BisectResult) -> str | None:
    """Return the step that changed most, unless it is the culprit; after a search for all steps it is always named.

    Where :func:`pinned_text` says why no peak changed, none is.

    It is chosen by reserved bytes where those went bad, elsewhere by requested bytes.
    """
    step = result.heaviest
    if step is None or pinned_text(result) or not (result.waterfall or isinstance(result.culprit, CommitCulprit)):
        return None
    if isinstance(result.culprit, CommitCulprit) and step.commit == result.culprit.commit:
        return "the commit that tipped it over" if result.waterfall else None
    by = "reserved" if result.is_about_reserved else "requested"
    back = "" if sum(map(result.weight, result.steps)) else "; other steps take it back"
    return f"{delta_text(step.delta)} with {step_text(step)}, by {by} bytes{back}"


def threshold_text(result: BisectResult) -> str | None:
    """Return what to compare a repeated probe with, where bad is more than a size: a probe knows no ``--bad``."""
    quantity, is_threshold, size = result.bad_class.partition(">")
    return f"bad means {quantity} > {size}" if is_threshold and quantity in {"requested", "reserved"} else None


def growth_text(row: SiteGrowth) -> str:
    """Return the line that grew with its module where known, or what the row without a line is."""
    if row.site is None:
        return row.category
    return site_text(row.site) + in_module(row.site.module)


def unchanged_bytes(result: BisectResult) -> int:
    """Return the requested bytes of lines that did not change: what the rows of growth lack to either run's total."""
    before = bytes_of(result.last_good.result) if result.last_good else None
    return before.requested_bytes - sum(row.before_bytes for row in result.sites) if before else 0


def search_text(result: BisectResult) -> str:
    """Return what was searched, in one line."""
    probes = count(len(result.probes), "probe")
    if result.good == result.bad:  # the bad end of an open range answered by itself
        return f"the bad end alone, bad = {bad_text(result.bad_class)}; {probes}"
    skipped = f", {len(result.untestable)} of them untestable" if result.untestable else ""
    what = WALKED[result.axis]
    among = count(result.candidates, *what)
    if parts := _parts_searched(result):
        among += f" ({', '.join(parts)})"
    return f"{among} between good and bad, bad = {bad_text(result.bad_class)}; {probes}{skipped}"


def _parts_searched(result: BisectResult) -> list[str]:
    """Return how many of the candidates the search was over, where not all of them."""
    parts = []
    if result.on_line != result.candidates:
        parts.append(f"{result.on_line} of them on the line of first parents")
    if result.considered != result.on_line:
        which = "of those" if parts else "of them"
        chosen = "touch the chosen paths and " if result.paths else ""
        what = "change what is measured" if result.axis in {"commits", "both"} else "can be changed apart from others"
        parts.append(f"{result.considered} {which} {chosen}{what}")
    return parts


def remedy(result: BisectResult) -> str | None:
    """Return what to do next, in one line; None where the answer needs no remedy."""
    if result.remedy:
        return result.remedy
    if result.outcome == "no_culprit" and result.waterfall is None:
        return _of_growth(result)
    if result.outcome != "ends_invalid":
        return None
    ends = [probe for probe in result.probes if probe.role in {"good end", "bad end"}]
    untestable = next((probe for probe in ends if probe.answer is Answer.UNTESTABLE), None)
    if untestable is not None:
        return _of_untestable(untestable, result)
    answers = {probe.role: probe.answer for probe in ends}
    if answers.get("good end") is Answer.BAD and answers.get("bad end") is Answer.BAD:
        other = "an earlier good end, or --find-good," if result.axis in _COMMIT_AXES else "another good end,"
        return f"give {other} or a --bad that the good end does not meet"
    return None


def _of_growth(result: BisectResult) -> str | None:
    """Return how to find what grew between two good ends; None where nothing did."""
    ends = {probe.role: probe for probe in result.probes if probe.role in {"good end", "bad end"}}
    good, bad = ends.get("good end"), ends.get("bad end")
    if bad is not None and bad.leak_bytes:
        size = format_size(bad.leak_bytes)
        return f"the bad end leaks {size} an iteration: --steps names the change, more --iterations make it run out"
    if good is None or bad is None or good.peak is None or bad.peak is None:
        return None
    grown = bad.peak.requested_bytes - good.peak.requested_bytes
    if grown < MiB:
        return None
    return f"requested memory grew by {format_size(grown)} all the same: --steps names what made it grow"


def _of_untestable(end: ProbeRecord, result: BisectResult) -> str:
    read = f"read {end.log}, then " if end.log else ""
    if result.axis not in _COMMIT_AXES:
        return f"{read}fix what failed, or name another {end.role}"
    which = "a later" if end.role == "good end" else "an earlier"
    found = " (or --find-good)" if end.role == "good end" else ""
    return f"{read}name {which} {end.role}{found}, repair the commit with --fixup, or build it with --setup"


SMALL: Final = MiB
"""Change below which a step is small, if another one changes a hundred times as much."""


def folded(steps: Sequence[StepRow], culprit: str | None = None) -> tuple[StepRow, ...]:
    """Return the steps that matter, that of the commit ``culprit`` too, in order, and a row that sums all others."""
    least = min(SMALL, max(map(_size, steps), default=0) // 100)
    small = [step for step in steps if _size(step) <= least and (culprit is None or step.commit != culprit)]
    if len(small) < 2:
        return tuple(steps)
    rows = f"{count(len(small), 'further row')}, over {count(sum(step.commits for step in small), 'commit')}"
    what = f"at most {format_size(least)} each" if any(map(_size, small)) else "no change"
    total = sum((step.delta for step in small), start=Bytes(reserved_bytes=small[0].delta.reserved_bytes and 0))
    return (
        *(step for step in steps if step not in small),
        StepRow(commit=None, label=f"{what}: {rows}", delta=total),
    )


def _size(step: StepRow) -> int:
    return max(abs(step.delta.requested_bytes), abs(step.delta.reserved_bytes or 0))
