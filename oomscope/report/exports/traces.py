"""An explained snapshot as a trace for Perfetto: counters of memory, slices of phases, marks of incidents.

Source of the format: "Trace Event Format" of Chromium, which ui.perfetto.dev and its trace processor read. Its unit of
time is the microsecond; in a recording without times one microsecond stands for one event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import numpy as np

import oomscope
from oomscope.report.sentences import category_text, site_text
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.explain.drawing import Drawing
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation, Place
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.trace import Moment


class Track(NamedTuple):
    """A row of slices: a thread, in the format's words. A device is a process."""

    name: str
    part: Callable[[Moment], object]
    """Returns what is the same throughout a slice."""
    text: Callable[[Moment], str]
    """Returns the name of a slice; empty for no slice, since nothing is known."""


TRACKS: Final = (
    Track("iterations", lambda each: each.iteration, lambda each: _numbered("iteration", each.iteration)),
    Track("microbatches", lambda each: each[1:], lambda each: _numbered("microbatch", each.microbatch)),
    Track("phases", lambda each: each, lambda each: each.phase),
)
INCIDENTS: Final = {
    "oom": "out of memory",
    "retry": "cache given back for a refused request",
    "flush": "cache given back by the program",
}


def perfetto_trace(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> str:
    """Return the trace of a snapshot, or of the worst of a folder's ranks."""
    explanation = found.worst
    pairs = zip(explanation.devices, drawings, strict=True)
    document = {
        "traceEvents": [
            {"pid": device.index, **event}
            for device, drawing in pairs
            for event in _device_events(explanation.file, device, drawing)
        ],
        "otherData": {"file": explanation.file, "exporter": f"oomscope {oomscope.__version__}"},
    }
    return json.dumps(document, separators=(",", ":"))


def _device_events(file: str, device: DeviceExplanation, drawing: Drawing) -> Iterator[dict[str, Any]]:
    bins = drawing.bins
    has_times = bool((bins.time_us >= 0).all())
    times = np.maximum.accumulate(bins.time_us if has_times else bins.event).tolist()
    unit = "" if has_times else ", one microsecond an event"
    yield {"ph": "M", "name": "process_name", "args": {"name": f"{PurePath(file).name}, device {device.index}{unit}"}}
    if device.at_peak.event < 0:
        yield from _counters([0], {"requested": [device.at_peak.requested_bytes]})
    yield from _counters(times, _curves(bins))
    yield from _slices(bins, times)
    for event, name, size, place in _marks(device, drawing):
        args = {} if place is None else {"phase": place.phase, "line": site_text(place.site)}
        time = times[min(event // bins.per_bin, len(times) - 1)]
        yield {"ph": "i", "s": "p", "ts": time, "name": name, "args": {"bytes": size, **args}}


def _marks(device: DeviceExplanation, drawing: Drawing) -> Iterator[tuple[int, str, int, Place | None]]:
    """Yield what happened at an event: its name, its bytes, and where the program was, if known."""
    if device.at_peak.event >= 0:
        yield device.at_peak.event, "peak", device.peak.requested_bytes, device.place
    for event, kind, size in drawing.incidents:
        yield event, INCIDENTS[kind], size, device.failed_at if event == drawing.failed_event else None
    if device.is_predicted and drawing.failed_event is not None:
        asked = device.verdict.requested_bytes or 0
        yield drawing.failed_event, "would run out of memory on this card", asked, device.failed_at


def _curves(bins: Bins) -> dict[str, list[int]]:
    """Return what the counters show, by name; the requested bytes of the categories sum to all."""
    categories = {category_text(name): curve.tolist() for name, curve in bins.requested.items()}
    return {"requested": bins.all_requested.tolist(), "reserved": bins.reserved.tolist()} | categories


def _counters(times: list[int], curves: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    last: dict[str, int] = {}
    for place, time in enumerate(times):
        for name, curve in curves.items():
            if last.get(name) != (value := curve[place]):
                last[name] = value
                yield {"ph": "C", "ts": time, "name": name, "args": {"bytes": value}}


def _slices(bins: Bins, times: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the tracks, and a slice for each stretch in which one of them stays what it is."""
    ends = [*times[1:], times[-1] + 1] if times else []
    moments = [bins.moments[number] for number in bins.moment.tolist()]
    for number, track in enumerate(TRACKS, start=1):
        yield {"ph": "M", "tid": number, "name": "thread_name", "args": {"name": track.name}}
        for _, run in groupby(range(len(moments)), key=lambda at: track.part(moments[at])):
            first, *rest = run
            if name := track.text(moments[first]):
                duration = ends[rest[-1] if rest else first] - times[first]
                yield {"ph": "X", "tid": number, "ts": times[first], "dur": duration, "name": name}


def _numbered(name: str, number: int) -> str:
    return f"{name} {number}" if number >= 0 else ""
