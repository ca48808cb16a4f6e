"""An explained snapshot as pandas tables: the columns have the names of the JSON document, sizes are whole bytes.

Each table has a row for each row of the report, of all devices; ``device`` says of which. A table without rows has the
columns of a full one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import pandas as pd

from oomscope.report.dataframes import FIXES, SITES, Columns, table
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankSet

DEVICE: Final[Columns] = {"device": "int64"}
CATEGORIES: Final = {**DEVICE, "category": "string", "bytes": "int64", "count": "int64", "confidence": "string"}
MODULES: Final = {**DEVICE, "module": "string", "bytes": "int64"}
PINS: Final = {
    **DEVICE,
    "file": "string",
    "line": "int64",
    "function": "string",
    "module": "string",
    "category": "string",
    "segments": "int64",
    "held_bytes": "int64",
    "unused_bytes": "int64",
}
TIMELINE: Final = {**DEVICE, "event": "int64", "requested_bytes": "int64", "reserved_bytes": "int64"}
RANKS: Final = {
    "rank": "int64",
    "file": "string",
    "device": "int64",
    "events": "int64",
    "failed_bytes": "Int64",
    "requested_bytes": "int64",
    "reserved_bytes": "int64",
    "overhead_bytes": "int64",
    "end_requested_bytes": "int64",
    "iterations": "int64",
    "last_time_us": "Int64",
}


def tables_of(found: Explanation | RankSet) -> dict[str, pd.DataFrame]:
    """Return the tables by name: ``categories``, ``sites``, ``modules``, ``tried``, ``pins``, ``timeline``, and of a
    folder ``ranks``; those of a folder are of its worst rank.
    """
    explanation = found.worst if isinstance(found, RankSet) else found
    tables = {
        "categories": table(CATEGORIES, _rows(explanation, _categories)),
        "sites": table({**DEVICE, **SITES}, _rows(explanation, _sites)),
        "modules": table(MODULES, _rows(explanation, _modules)),
        "tried": table({**DEVICE, **FIXES, "margin_bytes": "Int64"}, _rows(explanation, _fixes)),
        "pins": table(PINS, _rows(explanation, _pins)),
        "timeline": table(TIMELINE, _rows(explanation, _timeline)),
    }
    if isinstance(found, RankSet):
        tables["ranks"] = table(RANKS, (asdict(row) for row in found.rows))
    return tables


Row = Mapping[str, Any]


def _rows(explanation: Explanation, of_device: Any) -> Iterator[Row]:
    for device in explanation.devices:
        for row in of_device(device):
            yield {"device": device.index, **row}


def _categories(device: DeviceExplanation) -> Iterator[Row]:
    return (asdict(row) for row in device.composition.categories)


def _sites(device: DeviceExplanation) -> Iterator[Row]:
    return ({**vars(row), **vars(row.site)} for row in device.composition.sites)


def _modules(device: DeviceExplanation) -> Iterator[Row]:
    return (asdict(row) for row in device.composition.modules)


def _fixes(device: DeviceExplanation) -> Iterator[Row]:
    unknown = {"margin_bytes": None} if device.available_bytes is None else {}
    return ({**vars(fix), **unknown} for fix in device.verdict.tried)


def _pins(device: DeviceExplanation) -> Iterator[Row]:
    lines = device.pins.lines if device.pins else ()
    return ({**vars(line), **vars(line.site)} for line in lines)


def _timeline(device: DeviceExplanation) -> Iterator[Row]:
    curves = device.curves
    points = zip(curves.events, curves.requested, curves.reserved, strict=True)
    return ({"event": event, "requested_bytes": live, "reserved_bytes": held} for event, live, held in points)
