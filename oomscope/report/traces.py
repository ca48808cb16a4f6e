"""An explained snapshot as a trace for Perfetto: counters of memory, slices of iterations and phases, failures.

Source of the format: "Trace Event Format" of Chromium, which ui.perfetto.dev and its trace processor read. Its unit of
time is the microsecond; in a recording without times one microsecond stands for one event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final

import numpy as np

import oomscope
from oomscope.report.sentences import category_text, site_text
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.explain.drawing import Drawing
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation, Place
from oomscope.snapshot.explain.rank_set import RankSet

ITERATIONS: Final = 1
PHASES: Final = 2
"""Numbers of the tracks of slices: threads, in the format's words. A device is a process."""


def perfetto_trace(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> str:
    """Return the trace of a snapshot, or of the worst of a folder's ranks.

    Args:
        found: what was found.
        drawings: the timelines, one for each device of the explanation that is shown.
    """
    explanation = found.worst if isinstance(found, RankSet) else found
    pairs = zip(explanation.devices, drawings, strict=True)
    document = {
        "traceEvents": [
            {"pid": device.index, **event}
            for device, drawing in pairs
            for event in _device_events(explanation.file, device, drawing.bins)
        ],
        "otherData": {"file": explanation.file, "exporter": f"oomscope {oomscope.__version__}"},
    }
    return json.dumps(document, separators=(",", ":"))


def _device_events(file: str, device: DeviceExplanation, bins: Bins) -> Iterator[dict[str, Any]]:
    """Yield the events of one device."""
    has_times = bool((bins.time_us >= 0).all())
    times = (bins.time_us if has_times else bins.event).tolist()
    unit = "" if has_times else ", one microsecond an event"
    yield {"ph": "M", "name": "process_name", "args": {"name": f"{PurePath(file).name}, device {device.index}{unit}"}}
    for number, name in ((ITERATIONS, "iterations"), (PHASES, "phases")):
        yield {"ph": "M", "tid": number, "name": "thread_name", "args": {"name": name}}
    if device.at_peak.event < 0:
        yield from _counters([0], {"requested": [device.at_peak.requested_bytes]})
    yield from _counters(times, _curves(bins))
    yield from _slices(bins, times)
    if device.at_peak.event >= 0:
        yield _instant("peak", _time_of(device.at_peak.event, bins, times), device.place, device.peak.requested_bytes)
    if device.failure and device.failed_at and device.failure.event >= 0 and device.verdict.requested_bytes is not None:
        time = _time_of(device.failure.event, bins, times)
        yield _instant("out of memory", time, device.failed_at, device.verdict.requested_bytes)


def _curves(bins: Bins) -> dict[str, list[int]]:
    """Return what the counters show, by name; the requested bytes of the categories sum to all."""
    categories = {category_text(name): curve.tolist() for name, curve in bins.requested.items()}
    return {"requested": bins.all_requested.tolist(), "reserved": bins.reserved.tolist()} | categories


def _counters(times: list[int], curves: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    """Yield the value of each counter wherever it changes."""
    last: dict[str, int] = {}
    for place, time in enumerate(times):
        for name, curve in curves.items():
            if last.get(name) != (value := curve[place]):
                last[name] = value
                yield {"ph": "C", "ts": time, "name": name, "args": {"bytes": value}}


def _slices(bins: Bins, times: list[int]) -> Iterator[dict[str, Any]]:
    """Yield a slice for each iteration, and one for each phase in it; what is unknown has none."""
    iteration = np.array([each.iteration for each in bins.moments], dtype=np.int64)[bins.moment]
    end = times[-1] + 1 if times else 0
    for track, column in ((ITERATIONS, iteration), (PHASES, bins.moment)):
        starts = np.flatnonzero(np.diff(column, prepend=-2)).tolist()
        for first, last in pairwise([*starts, len(times)]):
            moment = bins.moments[bins.moment[first]]
            is_known = moment.iteration >= 0
            name = moment.phase if track == PHASES else f"iteration {moment.iteration}" if is_known else ""
            if name:
                duration = (times[last] if last < len(times) else end) - times[first]
                yield {"ph": "X", "tid": track, "ts": times[first], "dur": duration, "name": name}


def _time_of(event: int, bins: Bins, times: list[int]) -> int:
    return int(times[min(event // bins.per_bin, len(times) - 1)])


def _instant(name: str, time: int, place: Place, size: int) -> dict[str, Any]:
    """Return a mark over all tracks of the device."""
    args = {"bytes": size, "phase": place.phase, "iteration": place.iteration, "line": site_text(place.site)}
    return {"ph": "i", "s": "p", "ts": time, "name": name, "args": args}
