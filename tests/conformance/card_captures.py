"""What was captured on a real card, held against the emulator, ``explain``, and the same captures of the virtual card.

Each comparison returns sentences about what differs, and none where all is as captured. What a folder of captures
holds: tests/gpu/README.md.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oomscope.allocator import AllocatorSettings, Driver
from oomscope.allocator.engine.constants import SMALL_SEGMENT
from oomscope.allocator.engine.expandable import reservation_size
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.build_snapshot import snapshot_of
from oomscope.snapshot.replay.recording import recorded_conf, recording_of
from oomscope.snapshot.sites import site_of
from oomscope.snapshot.trace import Snapshot
from oomscope.units import format_size
from tests.conformance.alignment import align_events
from tests.gpu.captures import golden
from tests.gpu.captures.history import relative
from tests.gpu.emulated import emulated_torch, on_card
from tests.unit.snapshot.explained import explain

Item = dict[str, Any]

ALLOCATED, RESERVED = 0.01, 0.03
"""How far off the virtual card's peaks may be, as shares of the real one's."""
COMPARED = ("alloc", "free_requested", "free_completed", "oom")
"""Of the trace, beside segment events."""
KINDS = {"capacity": "capacity"}
"""The verdict on each program that fails; all others fragment."""


def documents(folder: Path, part: str) -> list[dict[str, Any]]:
    """Return the documents of a part, which may be cut into several."""
    found = []
    for path in sorted(folder.glob(f"{part}*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def items(folder: Path, part: str) -> list[Item]:
    """Return what was captured of a part, each with the torch that it was captured with.

    Not what failed, but for the operations that were measured before the one at which their family did.
    """
    return [
        {**item, "torch": document["torch"]}
        for document in documents(folder, part)
        for item in document["items"]
        if "failed" not in item or item.get("rows")
    ]


def snapshot(path: Path) -> Snapshot:
    """Return a captured snapshot; it is this project's own, and so read without a process of its own."""
    with gzip.open(path, "rb") as file:
        return snapshot_of(pickle.load(file), where=path.name)


def titled(item: Item) -> str:
    """Return the name of an item with its settings."""
    return f"{item['name']} {item['conf']}".strip()


# ---- recorded traces, played on the card ---------------------------------------------------------------------------


def released_early(item: Item) -> bool:
    """Say whether a stream that was to be held was done too soon, so that the card was asked something else."""
    return any(not hold.get("outlasted", True) for hold in item["holds"])


def replayed(item: Item) -> Item:
    """Return what the same player gets of the emulator, on a driver that hands out the captured addresses."""
    driver = Driver(item["total_bytes"], policy="recorded", addresses=tuple(driver_addresses(item)))
    with on_card(emulated_torch(item["conf"], driver, item["torch"])):
        return golden.play({"record": item["record"]})


def driver_addresses(item: Item) -> Iterator[tuple[int, int]]:
    """Yield address and size of what the driver gave: segments, and reservations at their first mapping.

    A reservation goes with its last mapped page; the driver may give its addresses again.
    """
    large = AllocatorSettings.parse(item["conf"], torch_version=item["torch"]).large_segment_size
    trace, mapped = item["trace"], dict[tuple[int, int], int]()
    for action, address, size in zip(trace["action"], trace["addr"], trace["size"], strict=True):
        if action == "segment_alloc":
            yield address, size
        span = next((each for each in mapped if each[0] <= address < each[1]), None)
        if action not in {"segment_map", "segment_unmap"} or (span is None and action == "segment_unmap"):
            continue
        if span is None:
            extent = reservation_size(item["total_bytes"], SMALL_SEGMENT if size == SMALL_SEGMENT else large)
            span = address, address + extent
            yield address, extent
        left = mapped.pop(span, 0) + (size if action == "segment_map" else -size)
        if left:
            mapped[span] = left


def golden_differences(item: Item) -> list[str]:
    """Return in what the emulator differs from the card: addresses, events, failures, statistics, segments."""
    mine, theirs = _comparable(replayed(item)), _comparable(item)
    return [f"{name}: {_first(mine[name], theirs[name])}" for name in theirs if mine[name] != theirs[name]]


def _comparable(item: Item) -> dict[str, Any]:
    number = {handle: index for index, handle in enumerate(item["streams"])}
    trace = item["trace"]
    columns = zip(trace["action"], trace["addr"], trace["size"], trace["stream"], strict=True)
    segments = [
        {**segment, "stream": number[segment["stream"]], "blocks": [_block(*block) for block in segment["blocks"]]}
        for segment in item["segments"]
    ]
    return {
        "ooms": item["ooms"],
        "placements": item["placements"],
        "events": [
            (action, None if action == "oom" else address, size, number[stream])
            for action, address, size, stream in columns
            if action in COMPARED or action.startswith("segment_")
        ],
        "markers": [(each["op"], _counted(each["stats"])) for each in item["markers"]],
        "segments": sorted(segments, key=lambda segment: segment["address"]),
        "stats": _counted(item["stats"]),
    }


def _block(address: int, size: int, requested: int, state: str) -> tuple[int, int, int, str]:
    """Return a block; torch leaves a stale number of requested bytes in those that nobody has."""
    return address, size, 0 if state == "inactive" else requested, state


def _counted(stats: dict[str, int]) -> dict[str, int]:
    """Return the counters that every torch has."""
    wanted = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes")
    single = {"num_alloc_retries", "num_ooms"}
    kinds = {*wanted, "inactive_split_bytes", "requested_bytes"}
    return {name: value for name, value in sorted(stats.items()) if name in single or name.partition(".")[0] in kinds}


def _first(mine: Any, theirs: Any) -> str:
    """Return the first place at which two values differ."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
        return f"{keys[0]}: {mine.get(keys[0])} for {theirs.get(keys[0])}, and {len(keys) - 1} more"
    pairs = enumerate(zip(mine, theirs, strict=False))
    at = next((index for index, (ours, other) in pairs if ours != other), min(len(mine), len(theirs)))
    ours, other = (str(side[at : at + 1])[:200] for side in (mine, theirs))
    return f"at {at} of {len(theirs)}: {ours} for {other}"


# ---- failures on purpose -------------------------------------------------------------------------------------------


def failure_problems(item: Item, others: Sequence[Item], found: Snapshot) -> list[str]:
    """Return in what ``explain`` is wrong about a failure: its kind, whether it is spurious, and what cures it.

    Args:
        item: what happened.
        others: the same program under other settings: what really happened there.
        found: the snapshot.
    """
    [device] = explain(found, file=item["file"]).devices
    verdict = device.verdict
    if item["first"] is None:
        return [] if verdict.kind == "headroom" else [f"{verdict.kind} though every request was served"]
    problems = []
    if verdict.kind != (kind := KINDS.get(item["name"], "fragmentation")):
        problems.append(f"the verdict is {verdict.kind}, not {kind}")
    if device.available_bytes is None or abs(device.available_bytes - item["limit_bytes"]) > 1:
        problems.append(f"D is {device.available_bytes}, not {item['limit_bytes']}")
    if ("spurious" in verdict.tags) != (item["again"] is None):
        problems.append(f"tags are {verdict.tags}, and repeated it said {item['again']}")
    if device.fidelity != 1:
        problems.append(f"its replay repeats {device.fidelity} of the segment events")
    for other in others:
        if (other["conf"] in verdict.cured_by) != (other["first"] is None):
            real = "served" if other["first"] is None else "refused"
            problems.append(f"under {other['conf']} the request was {real}; the verdict names {verdict.cured_by}")
    return problems


# ---- two iterations of training ------------------------------------------------------------------------------------


def replay_problems(item: Item, found: Snapshot) -> list[str]:
    """Return where the emulator does not repeat a captured trace, event for event and address for address."""
    [timeline] = timelines(found)
    problems = []
    reconciled = timeline.reconciliation
    if reconciled.difference_bytes or reconciled.inconsistent_events:
        problems.append(f"live bytes do not reconcile: {reconciled}")
    recording = recording_of(found, timeline, item["torch"])
    if recorded_conf(found, timeline.trace.device).replace(" ", "") != item["conf"]:
        problems.append(f"it ran under {recorded_conf(found, timeline.trace.device)!r}, not {item['conf']!r}")
    fidelity = recording.fidelity
    if not fidelity.is_exact:
        first = fidelity.mismatches[0] if fidelity.mismatches else f"placed elsewhere from {fidelity.first_divergence}"
        problems.append(f"{fidelity.matched} of {fidelity.recorded} segment events repeated: {first}")
    return problems


def timelines(found: Snapshot) -> list[Timeline]:
    """Return the paired traces of a snapshot, of the devices that have any."""
    return [Timeline.of(trace, found.segments) for trace in found.traces if len(trace)]


# ---- the same captures of the virtual card -------------------------------------------------------------------------


def pairs(real: Path, virtual: Path, part: str) -> Iterator[tuple[Item, Item]]:
    """Yield what was captured of the real card with what was of the virtual one, under the same name and settings.

    Raises:
        KeyError: the virtual card's lacks.
    """
    found = {titled(item): item for item in items(virtual, part)}
    return ((item, found[titled(item)]) for item in items(real, part))


def outcome_problems(real: Item, virtual: Item) -> list[str]:
    """Return which requests of a failing program only one of both cards served."""
    requests = ("first", "again", "after_synchronize")
    return [
        f"{request}: the real card said {real[request]!r}, the virtual one {virtual[request]!r}"
        for request in requests
        if (real[request] is None) != (virtual[request] is None)
    ]


def training_problems(real: Item, real_trace: Snapshot, virtual: Item, virtual_trace: Snapshot) -> list[str]:
    """Return in what the virtual card is further off than it may be, with the rows that make the difference."""
    [card], [mine] = timelines(real_trace), timelines(virtual_trace)
    problems = _off("live", *(each.requested_bytes_at(each.peak_event()) for each in (card, mine)), ALLOCATED)
    for name, bar in (("reserved", RESERVED), ("allocated", ALLOCATED)):
        problems += _off(name, *(each["stats"][f"{name}_bytes.all.peak"] for each in (real, virtual)), bar)
    places = [_place(each) for each in (card, mine)]
    if places[0] != places[1]:
        problems.append(f"the peak is at {places[1]}, not at {places[0]}")
    found = align_events(card, mine)
    if abs(found.delta_bytes) > ALLOCATED * found.before_bytes:
        problems.append(f"blocks that differ at the peak hold {format_size(found.delta_bytes, signed=True)}")
    if problems:
        problems += [
            f"  {row.kind} {number} of {row.after_bytes or row.before_bytes}" for row, number in found.rows[:8]
        ]
    return problems


def _off(name: str, real: int, virtual: int, bar: float) -> list[str]:
    share = (virtual - real) / real
    return [f"the {name} peak is {100 * share:+.2f} % off: {virtual} for {real}"] if abs(share) > bar else []


def _place(timeline: Timeline) -> tuple[str, int] | None:
    """Return the line of this project at which the peak is made."""
    trace, event = timeline.trace, timeline.peak_event()
    site = site_of(trace.stacks[trace.stack_id[event]])
    return (relative(site.file), site.line) if site else None


def operation_problems(real: Item, virtual: Item) -> dict[str, list[str]]:
    """Return by operation in what the virtual card takes other bytes than the real card took."""
    mine = {row["op"]: row for row in virtual["rows"]}
    return {row["op"]: _row_problems(row, mine.get(row["op"])) for row in real["rows"] if "error" not in row}


def _row_problems(real: Item, virtual: Item | None) -> list[str]:
    if virtual is None:
        return ["the virtual card did not come to it"]
    if "error" in virtual:
        return [f"on the virtual card: {virtual['error']}"]
    told = []
    for what in ("peak", "after"):
        theirs, ours = (row[what] - row["before"] for row in (real, virtual))
        if abs(ours - theirs) > ALLOCATED * max(theirs, 1):
            told.append(f"{what}: {format_size(ours, signed=True)} for {format_size(theirs, signed=True)}")
    if told:
        told.append(f"blocks of the real card: {_sizes(real)}, of the virtual one: {_sizes(virtual)}")
    return told


def _sizes(row: Item) -> list[int]:
    return [size for action, size in row["events"] if action == "alloc"]
