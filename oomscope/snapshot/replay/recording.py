"""One device's trace made ready for replays: whose rules, from which state, on which card, and how faithfully.

Snapshots carry no torch version unless oomscope wrote them. What differs between versions in a recording is the order
among equally large free blocks; the version whose order repeats the trace best is taken (``docs/design/allocator.md``).

The allocator configuration that a recorded job really ran under, as a PYTORCH_ALLOC_CONF string. What the allocator
reports of itself counts before the text of the environment variable, which some versions ignore. Expandable segments
that are not reported show by segments and events; of other keys the text counts where it is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oomscope.allocator import AllocatorSettings
from oomscope.allocator.alloc_conf import joined, pairs_of
from oomscope.errors import AllocatorConfError
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.budget import Budget, budget_of
from oomscope.snapshot.replay.fidelity import Fidelity, fidelity_of
from oomscope.snapshot.replay.fixes import Rules
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.releases import capacity_of
from oomscope.snapshot.replay.replay import Device, Replay, fitting, replay, result_of, serve
from oomscope.snapshot.replay.requests import Requests, fatal_event, requests_of
from oomscope.snapshot.trace import Action, Snapshot
from oomscope.torch_versions import CONF_VARIABLE, OLD_CONF_VARIABLE
from oomscope.units import MiB

CONF_KEYS: Final = (CONF_VARIABLE, OLD_CONF_VARIABLE)
REPORTED_AS: Final = {
    "max_split_size_mb": "max_split_size",
    "garbage_collection_threshold": "garbage_collection_threshold",
    "roundup_power2_divisions": "roundup_power2_divisions",
    "large_segment_size_mb": None,
    "max_non_split_rounding_mb": None,
    "per_process_memory_fraction": None,
}
"""Keys of the text that change what is allocated, and the allocator's own names for them in its report, if any."""


def recorded_conf(snapshot: Snapshot, device: int) -> str:
    """Return the configuration in force on ``device`` (``allocator_settings``, PyTorch torch/csrc/cuda/Module.cpp)."""
    return joined(_settings(snapshot, device))


def ignored_conf(snapshot: Snapshot) -> tuple[str, ...]:
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
    for key, value in _text(reported):
        if key in REPORTED_AS and REPORTED_AS[key] not in reported and _is_known(key, value):
            yield key, value


def _shows_expandable(snapshot: Snapshot, device: int) -> bool:
    """Whether the device takes its memory page by page: by its events, and without such by its segments."""
    actions = {action for trace in snapshot.traces if trace.device == device for action in set(trace.action.tolist())}
    if actions & {Action.SEGMENT_MAP, Action.SEGMENT_ALLOC}:
        return Action.SEGMENT_MAP in actions
    return any(segment.is_expandable for segment in snapshot.segments if segment.device == device)


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
    """Source of the version: ``given``, ``recorded`` in the file, or ``found`` by what repeats the trace best."""
    requests: Requests
    budget: Budget
    """The recorded card, with what the file shows of it."""
    fidelity: Fidelity
    baseline: Replay
    """The replay on the recorded card."""
    ignored: tuple[str, ...] = ()
    """Recorded settings that are ill-formed or have no rules here."""

    @property
    def settings_doubt(self) -> str | None:
        """Which recorded settings are left out, for people; None where none is."""
        if not self.ignored:
            return None
        return f"recorded settings that are invalid or not modelled are ignored: {', '.join(self.ignored)}"


def recording_of(snapshot: Snapshot, timeline: Timeline, torch_version: str | None = None) -> Recording:
    """Return the recording of one device.

    Without ``torch_version`` the rules of the file's torch count, else those that repeat the trace best, of equals the
    oldest.

    Raises:
        AllocatorConfError: that version, or every version, lacks one of the recorded settings.
    """
    recorded = snapshot.provenance.torch_version if snapshot.provenance else ""
    source = "given" if torch_version else "recorded" if recorded else "found"
    conf = recorded_conf(snapshot, timeline.trace.device)
    candidates: list[Recording] = []
    refusal: AllocatorConfError | None = None
    for version in (torch_version or recorded,) if source != "found" else STAND_FOR:
        rules = Rules(conf=conf, torch_version=version)
        try:
            settings = rules.settings()
        except AllocatorConfError as error:
            refusal = error
            continue
        candidates.append(_under(rules, settings, snapshot, timeline, source))
        if candidates[-1].fidelity.is_exact:
            break
    if not candidates and refusal is not None:
        raise refusal
    return max(candidates, key=lambda each: (each.fidelity.share, each.fidelity.placed))


def _under(rules: Rules, settings: AllocatorSettings, snapshot: Snapshot, timeline: Timeline, source: str) -> Recording:
    initial = recover(timeline, settings)
    requests = requests_of(timeline, initial=initial)
    budget = _budget(snapshot, timeline, settings, requests)
    served = fitting(requests, budget.device)
    outcome = serve(served, settings, budget.device, at_recorded_addresses=True)
    baseline = result_of(outcome, served, settings, budget.device, at_recorded_addresses=True)
    fidelity = fidelity_of(timeline, served, outcome, settings)
    fatal = fatal_event(timeline.trace)
    if fatal is not None and baseline.survives:
        pending = requests_of(timeline, pending_at_last=True, initial=initial)
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
        ignored=ignored_conf(snapshot),
    )


def _budget(snapshot: Snapshot, timeline: Timeline, settings: AllocatorSettings, requests: Requests) -> Budget:
    """Return what the file states of the card, or else what the driver's refusals show of it.

    A refusal bounds the card from above, the most that was ever reserved bounds it from below. Whatever lies between is
    served and refused alike in the recorded run; a card of the lower bound promises nothing that the true one lacks.
    """
    budget = budget_of(snapshot, timeline, settings, limit=None)
    capacity = capacity_of(timeline)
    if budget.source or capacity is None:
        return budget
    source = "the requests that the driver refused until cached memory was released, which show no more than a bound"
    held = timeline.reserved_peak().reserved_bytes
    least = max(min(capacity, held), requests.held_bytes)
    return Budget(device=Device(total_bytes=least), source=source, most_bytes=max(capacity, least, held))
