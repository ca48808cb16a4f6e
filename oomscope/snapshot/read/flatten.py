"""Turn the plain values of a snapshot file, of any torch since 2.0, into tables.

PyTorch never numbered its schema: fields came and went, and what a file holds is told by which keys it has. Every
value that is used is checked for its type; what the schema does not name is dropped unread, however deep it nests.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from oomscope.errors import SnapshotError
from oomscope.snapshot.event_fields import PLACES_KEY
from oomscope.snapshot.provenance import KEY
from oomscope.snapshot.read.events import MAX_TOTAL, ForwardFrames, event_columns
from oomscope.snapshot.read.reader import REMEDY, Place, Reader
from oomscope.snapshot.read.tables import ANNOTATIONS, BLOCKS, SEGMENTS, Column, Tables

FREE_VALUES: Final = 10_000
"""Values that ``allocator_settings`` may hold; torch writes about thirty."""
DEFAULT_DEPTH: Final = 32
"""Levels that free-form values may nest."""
STATES: Final = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}
"""Block states; the third is the name in PyTorch's documentation, which its code never writes."""
MAX_DEVICES: Final = 128
"""Indices of devices are signed bytes (PyTorch, c10/core/Device.h)."""
TOP_LEVEL: Final = ("allocator_settings", "external_annotations")
"""Keys that torch writes since 2024."""


def flatten(document: object, *, where: str, depth: int = DEFAULT_DEPTH) -> Tables:
    """Return the tables that plain values describe.

    Args:
        document: a dict with ``segments`` and ``device_traces``, or the bare list of segments of early dumps.
        where: the file's name, for messages.
        depth: levels that ``allocator_settings`` may nest.

    Raises:
        SnapshotError: the values do not have the shape of a snapshot; the message names the place.
    """
    reader = Reader(where)
    root = {"segments": document} if isinstance(document, list) else document
    if not isinstance(root, dict) or "segments" not in root:
        raise SnapshotError("no memory snapshot: it has no segments", where=where, remedy=REMEDY)
    settings = reader.mapping(root.get("allocator_settings", {}), "allocator_settings")
    columns: dict[str, Column] = {}
    for prefix in ("", "host_"):
        _segments(reader, root, f"{prefix}segments", columns)
    forward = ForwardFrames(reader, root.get(PLACES_KEY))
    values: dict[str, Any] = {
        "device_traces": _traces(reader, root, "device_traces", columns, forward),
        "host_traces": _traces(reader, root, "host_traces", columns, forward),
        "allocator_settings": _FreeForm(reader, depth).plain(settings, "allocator_settings"),
        KEY: _own(reader, root.get(KEY), depth),
        "missing": [name for name in TOP_LEVEL if name not in root],
    }
    _refuse_many_devices(columns, values, where)
    _refuse_endless_sums(reader, columns, values)
    _annotations(reader, root, columns)
    values["texts"] = list(reader.texts)
    columns.update(_frames(reader), **_stacks(reader))
    return Tables(columns, values)


def _refuse_many_devices(columns: dict[str, Column], values: dict[str, Any], where: str) -> None:
    for prefix, key in (("", "device_traces"), ("host_", "host_traces")):
        devices = {*columns[f"{prefix}segments.device"], *(row["device"] for row in values[key])}
        if len(devices) > MAX_DEVICES:
            raise SnapshotError(
                f"it is about {len(devices):,} devices, but torch knows no more than {MAX_DEVICES}",
                where=where,
                remedy=REMEDY,
            )


def _refuse_endless_sums(reader: Reader, columns: dict[str, Column], values: dict[str, Any]) -> None:
    """Refuse blocks, and a trace on top of them, that come to more than a column can tell."""
    for prefix, key in (("", "device_traces"), ("host_", "host_traces")):
        names = ("total_size", "blocks.size", "blocks.requested_size")
        held = max(sum(columns[f"{prefix}segments.{name}"]) for name in names)
        if held > MAX_TOTAL:
            said = "list of segments: the sizes of its blocks add up to more than 8 EiB"
            raise reader.error(f"{prefix}segments", said)
        for row in values[key]:
            place = f"{key}[{row['device']}]"
            if held + sum(columns[f"{place}.size"]) > MAX_TOTAL:
                raise reader.error(place, "trace: its sizes and those of the segments add up to more than 8 EiB")


def _list(reader: Reader, root: dict[str, Any], key: str) -> list[Any]:
    return reader.sequence(root.get(key, []), key)


def _traces(
    reader: Reader, root: dict[str, Any], key: str, columns: dict[str, Column], forward: ForwardFrames
) -> list[dict[str, Any]]:
    """Add the columns of each non-empty trace under ``key`` and return what they are about."""
    traces = []
    for index, value in enumerate(_list(reader, root, key)):
        place = f"{key}[{index}]"
        events = reader.sequence(value, place)
        if events:
            found, pools = event_columns(reader, events, place, forward)
            columns.update((f"{place}.{name}", column) for name, column in found.items())
            traces.append({"device": index, "pools": pools})
    return traces


def _segments(reader: Reader, root: dict[str, Any], key: str, columns: dict[str, Column]) -> None:
    """Add the columns of the segments under ``key`` and of their blocks."""

    def place(index: int) -> str:
        return f"{key}[{index}]"

    rows = reader.mappings(_list(reader, root, key), place)
    pools = [
        reader.pool(row.get("segment_pool_id", (0, 0)), f"{key}[{i}].segment_pool_id") for i, row in enumerate(rows)
    ]
    blocks_of = [reader.sequence(row.get("blocks", []), f"{key}[{index}].blocks") for index, row in enumerate(rows)]
    table = {
        "device": reader.integers([row.get("device", 0) for row in rows], "q", place, "device"),
        "address": reader.integers([row.get("address") for row in rows], "Q", place, "address"),
        "total_size": reader.sizes([row.get("total_size") for row in rows], place, "total_size"),
        "stream": reader.integers([row.get("stream", 0) for row in rows], "q", place, "stream"),
        "segment_type": reader.text_numbers([row.get("segment_type", "large") for row in rows], place, "segment_type"),
        "is_expandable": array("b", [row.get("is_expandable", False) is True for row in rows]),
        "pool_first": array("q", [pool[0] for pool in pools]),
        "pool_second": array("q", [pool[1] for pool in pools]),
        "stack": reader.stack_numbers([row.get("frames") for row in rows], place),
        "counter": reader.integers([row.get("requested_size", -1) for row in rows], "q", place, "requested_size"),
        "block_count": array("q", map(len, blocks_of)),
    }
    reader.ends(table["address"], table["total_size"], place)
    if sum(table["total_size"]) > MAX_TOTAL:
        raise reader.error(key, "list of segments: their sizes add up to more than 8 EiB")
    columns.update((f"{key}.{name}", table[name]) for name in SEGMENTS)
    blocks = {name: array(typecode) for name, typecode in BLOCKS.items()}
    for index, (address, row) in enumerate(zip(table["address"], blocks_of, strict=True)):
        for name, column in _blocks(reader, row, address, f"{key}[{index}].blocks").items():
            blocks[name].extend(column)
    columns.update((f"{key}.blocks.{name}", column) for name, column in blocks.items())


def _blocks(reader: Reader, values: list[Any], address: int, key: str) -> dict[str, Column]:
    """Return the columns of a segment's blocks.

    Torch 2.0 wrote no addresses, but blocks lie end to end; and for frames and requested size a ``history``, newest
    tenant first.
    """

    def place(index: int) -> str:
        return f"{key}[{index}]"

    rows = reader.mappings(values, place)
    tenants = [
        _last_tenant(reader, row, f"{key}[{index}]") if "history" in row else {} for index, row in enumerate(rows)
    ]
    sizes = reader.sizes([row.get("size") for row in rows], place, "size")
    addresses = []
    for row, size in zip(rows, sizes, strict=True):
        here = row.get("address", address)
        addresses.append(here)
        address = here + size if type(here) is int else address
    requested = [
        row.get("requested_size", tenant.get("real_size", size))
        for row, tenant, size in zip(rows, tenants, sizes, strict=True)
    ]
    frames = [
        row["frames"] if "frames" in row else tenant.get("frames") for row, tenant in zip(rows, tenants, strict=True)
    ]
    table = {
        "address": reader.integers(addresses, "Q", place, "address"),
        "size": sizes,
        "requested_size": reader.sizes(requested, place, "requested_size"),
        "state": _states(reader, [row.get("state") for row in rows], place),
        "stack": reader.stack_numbers(frames, place),
    }
    reader.ends(table["address"], sizes, place)
    return table


def _states(reader: Reader, values: list[Any], place: Place) -> Column:
    """Return the numbers of block states, refusing those that PyTorch does not know."""
    numbers = reader.text_numbers(values, place, "state")
    if not STATES.keys() >= set(values):
        wrong = next(index for index, value in enumerate(values) if value not in STATES)
        raise reader.error(f"{place(wrong)}.state", "block state")
    return numbers


def _last_tenant(reader: Reader, block: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the newest entry of torch 2.0's ``history`` of a block; empty where there is none."""
    history = reader.sequence(block["history"], f"{place}.history")
    return reader.mapping(history[0], f"{place}.history[0]") if history else {}


def _annotations(reader: Reader, root: dict[str, Any], columns: dict[str, Column]) -> None:
    key = "external_annotations"

    def place(index: int) -> str:
        return f"{key}[{index}]"

    rows = reader.mappings(_list(reader, root, key), place)
    table = {
        "name": reader.text_numbers([row.get("name") for row in rows], place, "name"),
        "stage": reader.text_numbers([row.get("stage") for row in rows], place, "stage"),
        "device": reader.integers([row.get("device", 0) for row in rows], "q", place, "device"),
        "time_us": reader.integers([row.get("time_us", -1) for row in rows], "q", place, "time_us"),
    }
    columns.update((f"{key}.{name}", table[name]) for name in ANNOTATIONS)


def _frames(reader: Reader) -> dict[str, Column]:
    files, lines, names = zip(*reader.frames, strict=True) if reader.frames else ((), (), ())
    return {"frames.filename": array("i", files), "frames.line": array("q", lines), "frames.name": array("i", names)}


def _stacks(reader: Reader) -> dict[str, Column]:
    """Return the frame numbers of all stacks one after the other, and how many each has."""
    frames = array("i")
    for stack in reader.stacks:
        frames.extend(stack)
    return {"stacks.frame": frames, "stacks.length": array("i", map(len, reader.stacks))}


def _own(reader: Reader, value: object, depth: int) -> Any:
    """Return what oomscope's recording says of itself; None where that is damaged, which is no reason to refuse."""
    try:
        return _FreeForm(reader, depth).plain(value, KEY)
    except SnapshotError:
        return None


class _FreeForm:
    """Copies free-form values, bounded in depth and number.

    Args:
        reader: names what is wrong.
        depth: levels of nesting.
    """

    def __init__(self, reader: Reader, depth: int) -> None:
        self._reader = reader
        self._depth = depth
        self._left = FREE_VALUES

    def plain(self, value: object, place: str, level: int = 0) -> Any:
        """Return a copy of ``value`` that JSON can say."""
        self._left -= 1
        if level > self._depth or self._left < 0:
            bound = f"{self._depth} levels" if level > self._depth else f"{FREE_VALUES} values"
            raise SnapshotError(f"{place[:40]} is more than {bound}", where=self._reader.where, remedy=REMEDY)
        match value:
            case None | bool() | float() | str():
                return value
            case int() if -(2**63) <= value < 2**64:
                return value
            case list() | tuple():
                return [self.plain(item, f"{place}[{index}]", level + 1) for index, item in enumerate(value)]
            case dict() if all(type(key) is str for key in value):
                return {key: self.plain(item, f"{place}.{key[:40]}", level + 1) for key, item in value.items()}
            case _:
                raise self._reader.error(place, "plain value")
