"""Turn one device's list of event dicts into columns, some thousand events at a time.

Reading a column with one comprehension over events that are still in the cache, and checking it as a whole, keeps the
cost below that of unpickling; the place of a wrong value is looked for only once there is one.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from oomscope.snapshot.reader import Reader
from oomscope.snapshot.tables import EVENTS, Column

BATCH: Final = 4096
"""Events at a time."""
DEFAULT_POOL: Final = (0, 0)


def event_columns(reader: Reader, events: list[Any], place: str) -> tuple[dict[str, Column], list[tuple[int, int]]]:
    """Return the columns of :data:`~oomscope.snapshot.tables.EVENTS`, and the pools that ``pool`` numbers.

    Args:
        reader: checks values and names what is wrong.
        events: the event dicts, oldest first, of any schema version. ``oom`` events have ``device_free`` for an
            address, those before 2024 no ``time_us``, those before 2026 no ``pool_id``.
        place: where the events stand in the file, for messages.

    Raises:
        SnapshotError: an event lacks its action or has a value of the wrong type.
    """
    columns = {name: array(typecode) for name, typecode in EVENTS.items()}
    pools = {DEFAULT_POOL: 0}
    for start in range(0, len(events), BATCH):
        batch = events[start : start + BATCH]
        for name, column in _batch(reader, batch, pools, f"{place}[%d]", start).items():
            columns[name].extend(column)
    return columns, list(pools)


def _batch(
    reader: Reader, batch: list[Any], pools: dict[tuple[int, int], int], place: str, start: int
) -> dict[str, Column]:
    def where(index: int) -> str:
        return place % (start + index)

    events = reader.mappings(batch, where)
    said = [event.get("user_metadata", "") for event in events]
    if set(map(type, said)) != {str}:  # somebody else's; ours is text
        said = [text if type(text) is str else "" for text in said]
    addresses = [event["addr"] if "addr" in event else event.get("device_free", 0) for event in events]
    return {
        "action": reader.text_numbers([event.get("action") for event in events], where, "action"),
        "address": reader.integers(addresses, "Q", where, "addr"),
        "size": reader.sizes([event.get("size", 0) for event in events], where, "size"),
        "stream": reader.integers([event.get("stream", 0) for event in events], "q", where, "stream"),
        "time_us": reader.integers([event.get("time_us", -1) for event in events], "q", where, "time_us"),
        "stack": reader.stack_numbers([event.get("frames") for event in events], where),
        "pool": _pool_numbers(reader, [event.get("pool_id") for event in events], pools, place, start),
        "user_metadata": reader.text_numbers(said, where, "user_metadata"),
    }


def _pool_numbers(
    reader: Reader, values: list[Any], pools: dict[tuple[int, int], int], place: str, start: int
) -> Column:
    """Return the numbers of pool ids; events of torch before 2026 name none."""
    if values.count(None) == len(values):
        return array("i", bytes(4 * len(values)))
    numbers = array("i")
    for index, value in enumerate(values):
        pool = DEFAULT_POOL if value is None else reader.pool(value, f"{place % (start + index)}.pool_id")
        numbers.append(pools.setdefault(pool, len(pools)))
    return numbers
