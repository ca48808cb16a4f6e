"""The sentences of a search that terminal and HTML reports share."""

from __future__ import annotations

from oomscope.bisect.growth import SiteGrowth
from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.result import BisectResult, CommitCulprit, KeyChange, KeysCulprit, ProbeRecord, StepRow
from oomscope.report.words import count, site_text
from oomscope.units import format_size

HASH_LENGTH = 10
OUTCOMES = {
    "culprit": "CULPRIT FOUND",
    "no_culprit": "NO CULPRIT",
    "suspects": "ONLY SUSPECTS",
    "ends_invalid": "THE ENDS DO NOT DIFFER AS ASKED",
}


def short_hash(commit: str) -> str:
    """Return the beginning of a hash."""
    return commit[:HASH_LENGTH]


def probe_name(record: ProbeRecord) -> str:
    """Return which commit or keys were probed."""
    if record.commit is not None:
        return f"{short_hash(record.commit)} {record.subject}"
    if record.keys is None:
        return record.role
    return ", ".join(record.keys) if record.keys else "no key changed"


def culprit_title(culprit: CommitCulprit | KeysCulprit) -> str:
    """Return the commit's hash and subject, or the keys."""
    if isinstance(culprit, CommitCulprit):
        return f"{short_hash(culprit.commit)} {culprit.subject}"
    return ", ".join(change.key for change in culprit.keys)


def key_change(change: KeyChange) -> str:
    """Return ``data.seq_length: 4096 → 8192``."""
    return f"{change.key}: {change.good} → {change.bad}"


def before_and_after(result: BisectResult) -> list[tuple[str, str]]:
    """Return live and reserved bytes of the last good and the first bad probe, in words."""
    if result.last_good is None or result.first_bad is None:
        return []
    before, after = bytes_of(result.last_good.result), bytes_of(result.first_bad.result)
    if before is None or after is None:
        return []
    return [
        ("Live", _change(before.live_bytes, after.live_bytes)),
        ("Reserved", _change(before.reserved_bytes, after.reserved_bytes)),
    ]


def _change(before: int, after: int) -> str:
    return f"{format_size(before)} → {format_size(after)} ({format_size(after - before, signed=True)})"


def delta_text(delta: Bytes | None) -> str:
    """Return ``live +1.00 GiB, reserved +1.46 GiB``."""
    if delta is None:
        return "not measured"
    live, reserved = (format_size(size, signed=True) for size in (delta.live_bytes, delta.reserved_bytes))
    return f"live {live}, reserved {reserved}"


def step_text(step: StepRow) -> str:
    """Return the commit or keys that a step came with, or how many commits it spans."""
    if step.commit is None:
        return ", ".join(step.keys) or step.label
    if step.commits == 1:
        return f"{short_hash(step.commit)} {step.label}"
    return f"{count(step.commits, 'commit')} up to {short_hash(step.commit)} {step.label}"


def heaviest_step(result: BisectResult) -> str | None:
    """Return the step that added most live bytes, where that is another than the culprit: the last straw is seldom."""
    if not isinstance(result.culprit, CommitCulprit) or not result.steps:
        return None
    step = max(result.steps, key=lambda step: step.delta.live_bytes)
    if step.commit == result.culprit.commit or step.delta.live_bytes <= 0:
        return None
    return f"{delta_text(step.delta)} with {step_text(step)}"


def growth_text(row: SiteGrowth) -> str:
    """Return the line that grew, or what the row without a line is."""
    return site_text(row.site) if row.site else row.category


def search_text(result: BisectResult) -> str:
    """Return what was searched, in one line."""
    what = ("commit", "commits") if result.axis == "commits" else ("key", "keys")
    probes = count(len(result.probes), "probe")
    skipped = f", {len(result.untestable)} of them untestable" if result.untestable else ""
    among = count(result.candidates, *what)
    if result.considered != result.candidates:
        among += f" ({result.considered} of them change what is measured)"
    return f"{among} between good and bad, bad being {result.bad_class}; {probes}{skipped}"
