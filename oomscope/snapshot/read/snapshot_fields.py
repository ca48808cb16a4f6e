"""Turn the plain values of a snapshot file, of any torch since 2.0, into tables.

PyTorch never numbered its schema: fields came and went, and what a file holds is told by which keys it has. Every
value that is used is checked for its type; what the schema does not name is dropped unread, however deep it nests.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from oomscope.errors import SnapshotError
from oomscope.snapshot.forward_frames import PLACES_KEY
from oomscope.snapshot.provenance import KEY
from oomscope.snapshot.read.event_fields import ForwardFrames, event_columns, joined
from oomscope.snapshot.read.reader import REMEDY, Reader
from oomscope.snapshot.read.tables import Column, Tables

FREE_VALUES: Final = 10_000
"""Values that ``allocator_settings`` may hold; torch writes about thirty."""
DEPTH: Final = 32
"""Levels that free-form values may nest."""
STATES: Final = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}
"""Block states; the third is the name in PyTorch's documentation, which its code never writes."""
MAX_TOTAL: Final = 2**63 - 1
"""Bytes of all segments and one device's events together, so that no sum over them overflows a column."""
MAX_DEVICES: Final = 128
"""Indices of devices are signed bytes (PyTorch, c10/core/Device.h)."""
TOP_LEVEL: Final = ("allocator_settings", "external_annotations")
"""Keys that torch writes since 2024."""


def flatten(document: object, *, where: str) -> Tables:
    """Return the tables that plain values describe: a dict, or the bare list of segments of early dumps.

    Raises:
        SnapshotError: the values do not have the shape of a snapshot; the message names ``where`` and the place.
    """
    reader = Reader(where)
    root = {"segments": document} if isinstance(document, list) else document
    if not isinstance(root, dict) or "segments" not in root:
        raise SnapshotError("not a memory snapshot: it has no segments", where=where, remedy=REMEDY)
    settings = reader.mapping(root.get("allocator_settings", {}), "allocator_settings")
    columns: dict[str, Column] = {}
    _segments(reader, root, columns)
    values: dict[str, Any] = {
        "device_traces": _traces(reader, root, columns),
        "allocator_settings": _plain(reader, settings, "allocator_settings", [FREE_VALUES]),
        KEY: _own(reader, root.get(KEY)),
        "missing": [name for name in TOP_LEVEL if name not in root],
    }
    devices = {*columns["segments.device"], *(row["device"] for row in values["device_traces"])}
    if len(devices) > MAX_DEVICES:
        many = f"it names {len(devices):,} devices, but torch supports at most {MAX_DEVICES}"
        raise SnapshotError(many, where=where, remedy=REMEDY)
    _annotations(reader, root, columns)
    values["texts"] = list(reader.texts)
    columns.update(_frames(reader), **_stacks(reader))
    return Tables(columns, values)


def _traces(reader: Reader, root: dict[str, Any], columns: dict[str, Column]) -> list[dict[str, Any]]:
    """Add the columns of each non-empty trace and return what they are about.

    No sum over a trace and the segments may overflow a column.
    """
    forward = ForwardFrames(reader, root.get(PLACES_KEY))
    held = max(sum(columns[f"segments.{name}"]) for name in ("total_size", "blocks.size", "blocks.requested_size"))
    if held > MAX_TOTAL:
        raise reader.error("segments", "list of segments: their sizes add up to more than 8 EiB")
    traces = []
    for index, value in enumerate(reader.sequence(root.get("device_traces", []), "device_traces")):
        place = f"device_traces[{index}]"
        if events := reader.sequence(value, place):
            found, pools = event_columns(reader, events, place, forward)
            if held + sum(found["size"]) > MAX_TOTAL:
                raise reader.error(place, "trace: its sizes and those of the segments add up to more than 8 EiB")
            columns.update((f"{place}.{name}", column) for name, column in found.items())
            traces.append({"device": index, "pools": pools})
    return traces


def _segments(reader: Reader, root: dict[str, Any], columns: dict[str, Column]) -> None:
    """Add the columns of the segments and of their blocks; ``counter`` is -1 where the file states none."""
    rows = reader.mappings(reader.sequence(root["segments"], "segments"), "segments[]")

    def values(name: str, absent: Any = None) -> list[Any]:
        return [row.get(name, absent) for row in rows]

    pools = [reader.pool(pool, "segments[].segment_pool_id") for pool in values("segment_pool_id", (0, 0))]
    blocks_of = [reader.sequence(blocks, "segments[].blocks") for blocks in values("blocks", [])]
    table = {
        "device": reader.integers(values("device", 0), "q", "segments[].device"),
        "address": reader.integers(values("address"), "Q", "segments[].address"),
        "total_size": reader.sizes(values("total_size"), "segments[].total_size"),
        "stream": reader.integers(values("stream", 0), "q", "segments[].stream"),
        "segment_type": reader.text_numbers(values("segment_type", "large"), "segments[].segment_type"),
        "is_expandable": array("b", [value is True for value in values("is_expandable", False)]),
        "pool_first": array("q", [pool[0] for pool in pools]),
        "pool_second": array("q", [pool[1] for pool in pools]),
        "stack": reader.stack_numbers(values("frames"), "segments[].frames"),
        "counter": reader.integers(values("requested_size", -1), "q", "segments[].requested_size"),
        "block_count": array("q", map(len, blocks_of)),
    }
    reader.ends(table["address"], table["total_size"], "segments[]")
    blocks = joined(_blocks(reader, *each) for each in (*zip(blocks_of, table["address"], strict=True), ([], 0)))
    columns.update((f"segments.{name}", column) for name, column in table.items())
    columns.update((f"segments.blocks.{name}", column) for name, column in blocks.items())


def _blocks(reader: Reader, values: list[Any], address: int) -> dict[str, Column]:
    """Return the columns of a segment's blocks.

    Torch 2.0 wrote no addresses, but blocks lie end to end; and for frames and requested size a ``history``, newest
    tenant first.
    """
    place = "segments[].blocks[]"
    rows = reader.mappings(values, place)
    tenants = [_last_tenant(reader, row, place) if "history" in row else {} for row in rows]
    sizes = reader.sizes([row.get("size") for row in rows], f"{place}.size")
    addresses = []
    for row, size in zip(rows, sizes, strict=True):
        here = row.get("address", address)
        addresses.append(here)
        address = here + size if type(here) is int else address
    pairs = list(zip(rows, tenants, strict=True))
    requested = [
        row.get("requested_size", tenant.get("real_size", size))
        for (row, tenant), size in zip(pairs, sizes, strict=True)
    ]
    frames = [row["frames"] if "frames" in row else tenant.get("frames") for row, tenant in pairs]
    states = [row.get("state") for row in rows]
    table = {
        "address": reader.integers(addresses, "Q", f"{place}.address"),
        "size": sizes,
        "requested_size": reader.sizes(requested, f"{place}.requested_size"),
        "state": reader.text_numbers(states, f"{place}.state"),
        "stack": reader.stack_numbers(frames, f"{place}.frames"),
    }
    reader.ends(table["address"], sizes, place)
    if not STATES.keys() >= set(states):
        raise reader.error(f"{place}.state", "block state")
    return table


def _last_tenant(reader: Reader, block: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the newest entry of torch 2.0's ``history`` of a block; empty where there is none."""
    history = reader.sequence(block["history"], f"{place}.history")
    return reader.mapping(history[0], f"{place}.history[]") if history else {}


def _annotations(reader: Reader, root: dict[str, Any], columns: dict[str, Column]) -> None:
    key = "external_annotations"
    rows = reader.mappings(reader.sequence(root.get(key, []), key), f"{key}[]")
    table = {
        "name": reader.text_numbers([row.get("name") for row in rows], f"{key}[].name"),
        "stage": reader.text_numbers([row.get("stage") for row in rows], f"{key}[].stage"),
        "device": reader.integers([row.get("device", 0) for row in rows], "q", f"{key}[].device"),
        "time_us": reader.integers([row.get("time_us", -1) for row in rows], "q", f"{key}[].time_us"),
    }
    columns.update((f"{key}.{name}", column) for name, column in table.items())


def _frames(reader: Reader) -> dict[str, Column]:
    files, lines, names = zip(*reader.frames, strict=True) if reader.frames else ((), (), ())
    return {"frames.filename": array("i", files), "frames.line": array("q", lines), "frames.name": array("i", names)}


def _stacks(reader: Reader) -> dict[str, Column]:
    """Return the frame numbers of all stacks one after the other, and how many each has."""
    frames = array("i")
    for stack in reader.stacks:
        frames.extend(stack)
    return {"stacks.frame": frames, "stacks.length": array("i", map(len, reader.stacks))}


def _own(reader: Reader, value: object) -> Any:
    """Return the provenance that oomscope recorded; None where that is damaged, which is no reason to refuse."""
    try:
        return _plain(reader, value, KEY, [FREE_VALUES])
    except SnapshotError:
        return None


def _plain(reader: Reader, value: object, place: str, left: list[int], level: int = 0) -> Any:
    """Return a copy of free-form ``value`` that JSON can say, bounded in depth and in the number ``left`` of values."""
    left[0] -= 1
    if level > DEPTH or left[0] < 0:
        bound = f"{DEPTH} levels" if level > DEPTH else f"{FREE_VALUES} values"
        raise SnapshotError(f"{place[:40]} is more than {bound}", where=reader.where, remedy=REMEDY)
    match value:
        case None | bool() | float() | str():
            return value
        case int() if -(2**63) <= value < 2**64:
            return value
        case list() | tuple():
            return [_plain(reader, item, f"{place}[{index}]", left, level + 1) for index, item in enumerate(value)]
        case dict() if all(type(key) is str for key in value):
            return {key: _plain(reader, item, f"{place}.{key[:40]}", left, level + 1) for key, item in value.items()}
        case _:
            raise reader.error(place, "plain value")
