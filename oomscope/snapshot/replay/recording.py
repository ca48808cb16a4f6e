"""One device's trace made ready for replays: whose rules, from which state, on which card, and how faithfully.

Snapshots carry no torch version unless oomscope wrote them. What differs between versions in a recording is the order
among equally large free blocks; the version whose order repeats the trace best is taken (``docs/design/allocator.md``).

The allocator configuration that a recorded job really ran under, as a PYTORCH_ALLOC_CONF string. What the allocator
reports of itself counts before the text of the environment variable, which some versions ignore. Expandable segments
that are not reported show by segments and events; of other keys the text counts where it is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from oomscope.allocator import AllocatorSettings
from oomscope.errors import AllocatorConfError
from oomscope.snapshot.replay.budget import Budget, budget_of
from oomscope.snapshot.replay.fidelity import Fidelity, fidelity_of
from oomscope.snapshot.replay.fixes import Rules, pairs_of
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.releases import capacity_of, releases_of
from oomscope.snapshot.replay.replay import Device, Replay, fitting, replay, result_of, serve
from oomscope.snapshot.replay.requests import Requests, fatal_event, requests_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Snapshot
from oomscope.units import MiB

CONF_KEYS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
UNREPORTED: Final = ("large_segment_size_mb", "max_non_split_rounding_mb", "per_process_memory_fraction")
"""Keys that change what is allocated, but that no snapshot reports otherwise than in the text."""
REPORTED_AS: Final = {
    "max_split_size_mb": "max_split_size",
    "garbage_collection_threshold": "garbage_collection_threshold",
    "roundup_power2_divisions": "roundup_power2_divisions",
}
"""Under which name the allocator reports a key of the text."""


def recorded_conf(snapshot: Snapshot, device: int) -> str:
    """Return the configuration in force on ``device`` (``allocator_settings``, PyTorch torch/csrc/cuda/Module.cpp)."""
    return ",".join(f"{key}:{value}" for key, value in _settings(snapshot, device))


def unheeded_conf(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the parts of the recorded text that are ill-formed or have no rules here, and so are left out."""
    return tuple(f"{key}:{value}" for key, value in _text(snapshot.allocator_settings) if not _is_known(key, value))


def _settings(snapshot: Snapshot, device: int) -> Iterator[tuple[str, str]]:
    reported = snapshot.allocator_settings
    expandable = reported.get("expandable_segments")
    if expandable is True or (not isinstance(expandable, bool) and _shows_expandable(snapshot, device)):
        yield "expandable_segments", "True"
    max_split = reported.get("max_split_size")
    if isinstance(max_split, int) and max_split > 0:
        yield "max_split_size_mb", str(max_split // MiB)
    threshold = reported.get("garbage_collection_threshold")
    if isinstance(threshold, float) and 0 < threshold < 1:
        yield "garbage_collection_threshold", f"{threshold:g}"
    divisions = reported.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and {*map(type, divisions.values())} == {int} and any(divisions.values()):
        same = set(divisions.values())
        listed = ",".join(f"{size}:{count}" for size, count in divisions.items())
        yield "roundup_power2_divisions", str(*same) if len(same) == 1 else f"[{listed}]"
    yield from _of_text(reported)


def _shows_expandable(snapshot: Snapshot, device: int) -> bool:
    """Whether the device takes its memory page by page: by its events, and without such by its segments."""
    actions = {action for trace in snapshot.traces if trace.device == device for action in set(trace.action.tolist())}
    if actions & {Action.SEGMENT_MAP, Action.SEGMENT_ALLOC}:
        return Action.SEGMENT_MAP in actions
    return any(segment.is_expandable for segment in snapshot.segments if segment.device == device)


def _of_text(reported: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in _text(reported):
        is_all_there_is = key in UNREPORTED or (key in REPORTED_AS and REPORTED_AS[key] not in reported)
        if is_all_there_is and _is_known(key, value):
            yield key, value


def _text(reported: Mapping[str, Any]) -> list[tuple[str, str]]:
    return pairs_of(next((reported[key] for key in CONF_KEYS if isinstance(reported.get(key), str)), ""))


def _is_known(key: str, value: str) -> bool:
    try:
        AllocatorSettings.parse(f"{key}:{value}")
    except AllocatorConfError:
        return False
    return True


STAND_FOR: Final = {"2.11": "torch up to 2.11", "2.12": "torch 2.12", "2.13": "torch from 2.13 on"}
"""A version for each order among equally large blocks, and which versions share it."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A trace with all that its replay takes."""

    timeline: Timeline
    rules: Rules
    """The recorded settings, and the version whose rules count."""
    version_source: str
    """``given``, ``recorded`` in the file, or ``found`` as the one that repeats the trace best."""
    requests: Requests
    budget: Budget
    """The recorded card, as far as the file shows it."""
    fidelity: Fidelity
    baseline: Replay
    """The replay on the recorded card."""
    unheeded: tuple[str, ...] = ()
    """Recorded settings that are ill-formed or have no rules here."""
    stands_for_all: bool = False
    """The replay is the same by the rules of every version: nowhere did equally large blocks stand to choose from, no
    fraction was rounded, and no setting is of a meaning that changed."""

    @property
    def settings_doubt(self) -> str | None:
        """Which recorded settings are left out, for people; None where none is."""
        if not self.unheeded:
            return None
        return f"recorded settings that are ill-formed or have no rules here are left out: {', '.join(self.unheeded)}"


def recording_of(snapshot: Snapshot, timeline: Timeline, torch_version: str | None = None) -> Recording:
    """Return the recording of one device.

    Args:
        snapshot: the file.
        timeline: the device's trace.
        torch_version: whose rules count; None: those of the file's torch, else those that repeat the trace best, of
            equals the oldest.

    Raises:
        AllocatorConfError: that version, or every version, lacks one of the recorded settings.
    """
    told = snapshot.provenance.torch_version if snapshot.provenance else ""
    source = "given" if torch_version else "recorded" if told else "found"
    conf = recorded_conf(snapshot, timeline.trace.device)
    candidates: list[Recording] = []
    refusal: AllocatorConfError | None = None
    for version in (torch_version or told,) if source != "found" else STAND_FOR:
        rules = Rules(conf=conf, torch_version=version)
        try:
            settings = rules.settings()
        except AllocatorConfError as error:
            refusal = error
            continue
        candidates.append(_under(rules, settings, snapshot, timeline, source))
        if candidates[-1].stands_for_all or candidates[-1].fidelity.is_exact:
            break
    if not candidates and refusal is not None:
        raise refusal
    return max(candidates, key=lambda each: (each.fidelity.share, each.fidelity.placed))


def _under(rules: Rules, settings: AllocatorSettings, snapshot: Snapshot, timeline: Timeline, source: str) -> Recording:
    initial = recover(timeline, settings)
    collects = settings.garbage_collection_threshold > 0
    requests = requests_of(timeline, initial=initial, collects_garbage=collects)
    budget = _budget(snapshot, timeline, settings, requests)
    served = fitting(requests, budget.device)
    outcome = serve(served, settings, budget.device, at_recorded_addresses=True)
    baseline = result_of(outcome, served, settings, budget.device, at_recorded_addresses=True)
    fidelity = fidelity_of(timeline, served, outcome, settings)
    fatal = fatal_event(timeline.trace)
    if fatal is not None and baseline.survives:
        pending = requests_of(timeline, pending_at_last=True, initial=initial, collects_garbage=collects)
        failing = replay(pending, settings, budget.device, at_recorded_addresses=True)
        if failing.failed_event == fatal:
            requests, baseline = pending, failing
    return Recording(
        timeline=timeline,
        rules=rules,
        version_source=source,
        requests=requests,
        budget=budget,
        fidelity=fidelity,
        baseline=baseline,
        unheeded=unheeded_conf(snapshot),
        stands_for_all=not (outcome.allocator.num_ties or budget.device.fraction or _means_otherwise(rules)),
    )


def _means_otherwise(rules: Rules) -> bool:
    """Say whether some version reads the settings of ``rules`` in another way, or not at all."""
    try:
        meanings = {replace(rules, torch_version=version).settings() for version in STAND_FOR}
    except AllocatorConfError:
        return True
    return len({replace(meaning, torch_version=rules.torch_version) for meaning in meanings}) > 1


def _budget(snapshot: Snapshot, timeline: Timeline, settings: AllocatorSettings, requests: Requests) -> Budget:
    """Return what the file says of the card, or else what the driver's refusals show of it."""
    budget = budget_of(snapshot, timeline, settings, limit=None)
    capacity = capacity_of(timeline, releases_of(timeline))
    if budget.source or capacity is None:
        return budget
    if budget.is_upper_bound:
        ceiling = min(capacity, budget.device.total_bytes)
        return replace(budget, device=Device(total_bytes=max(ceiling, requests.held_bytes)))
    source = "the requests that the driver refused until cached memory was released, which show no more than a bound"
    return Budget(device=Device(total_bytes=max(capacity, requests.held_bytes)), source=source)
