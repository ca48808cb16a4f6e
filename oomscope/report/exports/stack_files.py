"""The live bytes by stack, as other programs read them: files of speedscope, and folded stacks.

Sources of the formats: speedscope's ``file-format-schema.json``, and ``stackcollapse`` of Brendan Gregg's FlameGraph,
a line a stack, its frames separated by semicolons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import oomscope
from oomscope.printable import one_line, printable
from oomscope.report.sentences import site_text
from oomscope.snapshot.accounting.attribution import AT_PEAK
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.explain.drawing import Drawing
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.sites import Frame, Site


def speedscope(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> str:
    """Return a profile for each device and moment: what is live by stack; of a folder's ranks the worst counts."""
    frames: dict[Frame, int] = {}
    profiles = []
    for device, live in _devices(found, drawings):
        for moment in live.moments:
            rows = live.at(moment).rows
            weights = [row.bytes[0] for row in rows]
            stacks = ((live.frames[number] for number in row.frames) for row in rows)
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{device} {moment}",
                    "unit": "bytes",
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in stacks],
                    "weights": weights,
                }
            )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"oomscope {oomscope.__version__}",
        "shared": {"frames": [{"name": each.name, "file": each.filename, "line": each.line} for each in frames]},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":"))


def folded(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> str:
    """Return what is live at the peak, a line a stack; of several devices the first frame is the device.

    Where no event is recorded the peak is the end.
    """
    devices = list(_devices(found, drawings))
    lines = []
    for device, live in devices:
        first = [device] if len(devices) > 1 else []
        peak = live.at(AT_PEAK if AT_PEAK in live.moments else live.moments[-1])
        for row in peak.rows:
            frames = ";".join([*first, *map(_label, peak.stack(row))])
            lines.append(f"{frames} {row.bytes[0]}\n")
    return "".join(lines)


def _devices(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> Iterator[tuple[str, LiveStacks]]:
    for device, drawing in zip(found.worst.devices, drawings, strict=True):
        yield f"device {device.index}", drawing.live


def _label(frame: Frame) -> str:
    site = Site(file=frame.filename, line=frame.line, function=frame.name)
    return printable(one_line(site_text(site))).replace(";", ":")
