"""The allocator configuration that a recorded job really ran under, as a PYTORCH_ALLOC_CONF string.

What the allocator reports of itself counts before the text of the environment variable, which some versions ignore.
Expandable segments that are not reported show by segments and events; of other keys the text counts where it is all
there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oomscope.allocator import AllocatorSettings
from oomscope.errors import AllocatorConfError
from oomscope.snapshot.replay.fixes import pairs_of
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
