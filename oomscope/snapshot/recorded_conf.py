"""The allocator configuration that a recorded job really ran under, as a PYTORCH_ALLOC_CONF string.

What the allocator reports of itself counts before the text of the environment variable, which some versions ignore.
Files that report nothing show expandable segments by their segments and events; the rest is taken for the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oomscope.snapshot.trace import Action, Snapshot
from oomscope.units import MiB

CONF_KEYS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
UNREPORTED: Final = ("large_segment_size_mb", "max_non_split_rounding_mb", "per_process_memory_fraction")
"""Keys that change what is allocated, but that no snapshot reports otherwise than in the text."""


def recorded_conf(snapshot: Snapshot, device: int) -> str:
    """Return the configuration in force on ``device`` (``allocator_settings``, PyTorch torch/csrc/cuda/Module.cpp)."""
    return ",".join(f"{key}:{value}" for key, value in _settings(snapshot, device))


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
    text = next((reported[key] for key in CONF_KEYS if isinstance(reported.get(key), str)), "")
    for part in text.replace(" ", "").split(","):
        key, _, value = part.partition(":")
        if key in UNREPORTED and value:
            yield key, value
