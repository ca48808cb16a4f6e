"""Results as pandas tables, for people who go on in a notebook or a spreadsheet.

Each function takes a result and returns a new table. Columns have the names of the JSON documents; sizes are whole
bytes, and what is unknown is missing (-1 for a moment and a time, as in a trace). A table without rows has the columns
and types of a full one, so that the tables of several results can be put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oomscope.bisect.results.result import BisectResult, ProbeRecord, StepRow
from oomscope.bisect.results.sections import levels
from oomscope.probe.result import ProbeResult, Site
from oomscope.probe.tuning.sweep import Sweep, SweepRow
from oomscope.report.commands.explain_sentences import moment
from oomscope.snapshot.accounting.attribution import SiteOf
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.compare.changes import LineChange
from oomscope.snapshot.compare.diff import Difference
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.sites import site_of
from oomscope.snapshot.trace import Action, Category, Segment, Trace
from oomscope.units import Bytes

Columns = Mapping[str, str]
"""Names and types of a table's columns, in order."""


def _columns(spec: str) -> dict[str, str]:
    """Return columns given as ``name:type``: ``i`` for whole numbers, ``n`` for those that may be missing."""
    types = {"s": "string", "i": "int64", "n": "Int64", "b": "bool", "f": "float64"}
    return {name: types[kind] for name, kind in (each.split(":") for each in spec.split())}


SITE: Final = _columns("file:s line:i function:s module:s")
SITES: Final = SITE | _columns("category:s bytes:i count:i")
CATEGORIES: Final = _columns("category:s bytes:i")
PHASES: Final = _columns("iteration:i phase:s requested_bytes:i reserved_bytes:i")
FIXES: Final = _columns(
    "name:s conf:s how:s survives:b is_tight:b peak_reserved_bytes:i margin_bytes:i retries:i failed_event:n "
    "failed_in:s note:s"
)
STEPS: Final = _columns(
    "commit:s label:s since:s commits:i merge:s keys:s delta_requested_bytes:i delta_reserved_bytes:n "
    "delta_overhead_bytes:n since_good_requested_bytes:i since_good_reserved_bytes:n dominant_category:s "
    "dominant_file:s dominant_line:n dominant_bytes:n"
)
PROBES: Final = _columns(
    "number:i role:s commit:s subject:s keys:s answer:s reason:s outcome:s requested_bytes:n reserved_bytes:n "
    "is_lower_bound:b cached:b wall_s:f probe_s:f"
)
GROWN_SITES: Final = SITE | _columns("category:s before_bytes:i after_bytes:i delta_bytes:i")
CHANGE: Final = _columns("before_bytes:i after_bytes:i delta_bytes:i before_count:i after_count:i delta_count:i")
DEVICE: Final = _columns("device:i")
CHANGED_LINES: Final = (
    DEVICE | SITE | _columns("category:s presence:s before_file:s before_line:n before_function:s") | CHANGE
)
CHANGED_TOTALS: Final = DEVICE | _columns("by:s name:s") | CHANGE
MOMENT: Final = _columns("moment:s")
EXPLAINED: Final = {
    "categories": DEVICE | MOMENT | _columns("category:s bytes:i count:i confidence:s"),
    "sites": DEVICE | MOMENT | SITES,
    "modules": DEVICE | MOMENT | _columns("module:s bytes:i"),
    "tried": DEVICE | FIXES | _columns("margin_bytes:n"),
    "pins": DEVICE | MOMENT | SITE | _columns("category:s segments:i held_bytes:i unused_bytes:i"),
    "timeline": DEVICE | _columns("event:i requested_bytes:i reserved_bytes:i"),
}
RANKS: Final = _columns(
    "rank:i file:s device:i events:i failed_bytes:n requested_bytes:i reserved_bytes:i overhead_at_peak_bytes:i "
    "end_requested_bytes:i iterations:i last_time_us:n"
)
COMBINATIONS: Final = _columns(
    "outcome:s verdict:s rank:n requested_bytes:n reserved_bytes:n margin_bytes:n host_bytes:n step_s:f"
)


def events(trace: Trace, segments: Sequence[Segment] | None = None, *, choose: SiteOf = site_of) -> pd.DataFrame:
    """Return one row an event of ``trace``, oldest first; the index is the number that ``peak.event`` and others name.

    Columns: ``action``, ``address`` (for ``oom`` the free device bytes, NA where unknown), ``size``, ``stream``,
    ``time_us``, ``phase``, ``iteration``, ``microbatch``, ``category``, ``module``, ``site`` and ``forward_site``
    (``file:line function``, empty where there is no stack), and the ``requested_bytes`` and ``reserved_bytes`` of
    :class:`Timeline` right after the event. Requested bytes that come (``alloc``) less those that go
    (``free_requested``) sum to the change of requested bytes. Columns of words are categorical.

    Args:
        trace: one device's events.
        segments: a snapshot's segments, by which a trace that began in the middle is lifted to what was there before.
        choose: which line stands for a stack.
    """
    timeline = Timeline.of(trace, segments)
    moment = trace.moment_id
    columns = {
        "action": _words(trace.action, [action.name.lower() for action in Action]),
        "address": pd.array(trace.address, dtype="UInt64"),
        "size": trace.size,
        "stream": trace.stream,
        "time_us": trace.time_us,
        "phase": _words(moment, [row.phase for row in trace.moments]),
        "iteration": np.array([row.iteration for row in trace.moments], dtype=np.int64)[moment],
        "microbatch": np.array([row.microbatch for row in trace.moments], dtype=np.int64)[moment],
        "category": _words(trace.category, [category.label for category in Category]),
        "module": _words(trace.module_id, trace.modules),
        "site": _sites(trace, trace.stack_id, choose),
        "forward_site": _sites(trace, trace.forward_stack_id, choose),
        "requested_bytes": timeline.requested,
        "reserved_bytes": timeline.reserved,
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(len(trace), name="event"))


def sites(result: ProbeResult) -> pd.DataFrame:
    """Return requested bytes at the peak by line, module and category, largest first.

    ``bytes`` sums to ``result.peak.requested_bytes``; ``count`` is in blocks. No rows where nothing was measured.
    """
    rows = result.peak.sites if result.peak else ()
    return table(SITES, ({**vars(row), **vars(row.site)} for row in rows))


def categories(result: ProbeResult) -> pd.DataFrame:
    """Return requested bytes at the peak by category; ``bytes`` sums to ``result.peak.requested_bytes``."""
    rows = result.peak.categories.items() if result.peak else ()
    return table(CATEGORIES, ({"category": category, "bytes": size} for category, size in rows))


def phases(result: ProbeResult) -> pd.DataFrame:
    """Return the peak inside each phase of each iteration, in order; the largest is the peak of ``result``."""
    return table(PHASES, (vars(row) for row in result.phases))


def tried(result: ProbeResult) -> pd.DataFrame:
    """Return each allocator setting that was tried, by a replay or by a run; no rows where none was."""
    return table(FIXES, (vars(row) for row in (result.verdict.tried if result.verdict else ())))


def steps(result: BisectResult) -> pd.DataFrame:
    """Return the steps of a search.

    ``delta_requested_bytes`` and ``delta_reserved_bytes`` sum to the difference of the two ends, the latter missing
    where a command printed its requested bytes alone; ``merge`` is the one that brought a commit in, where that was
    looked into; ``keys`` are separated by commas. ``since_good_…`` is what this row and those before it sum to;
    ``dominant_…`` is the line whose requested bytes changed most, missing where there is none.
    """
    reached = levels(Bytes(), (row.delta for row in result.steps))
    return table(STEPS, map(_step, result.steps, reached))


def probes(result: BisectResult) -> pd.DataFrame:
    """Return every question that a search asked, in order; its bytes are missing where nothing was measured."""
    return table(PROBES, (_probe(row) for row in result.probes))


def grown_sites(result: BisectResult) -> pd.DataFrame:
    """Return the lines whose requested bytes differ between the last good and the first bad probe.

    ``delta_bytes`` sums to ``result.change.requested_bytes``. A row that no line stands for has no file, and its
    category says what it is.
    """
    nowhere = Site(file="", line=0, function="")
    rows = ({**vars(row), **vars(row.site or nowhere), "delta_bytes": row.delta_bytes} for row in result.sites)
    return table(GROWN_SITES, rows)


def changed_lines(difference: Difference) -> pd.DataFrame:
    """Return what each line holds of each category at the peaks of two snapshots, the unchanged ones too.

    ``presence`` is ``both``, ``new`` or ``gone``; ``before_file``, ``before_line`` and ``before_function`` say where
    the line stood, and are missing where it is new. Of each device, named as the second snapshot does, ``delta_bytes``
    sums to the difference of the peaks.
    """
    return table(
        CHANGED_LINES,
        (
            {"device": device.after.device, **_changed_line(row)}
            for device in difference.devices
            for row in device.lines
        ),
    )


def _changed_line(row: LineChange) -> dict[str, Any]:
    was = None if row.presence == "new" else row.was or row.site
    before = {"before_file": was and was.file, "before_line": was and was.line, "before_function": was and was.function}
    return {**row.to_json(), **vars(row.site), **before}


def changed_totals(difference: Difference) -> pd.DataFrame:
    """Return requested bytes at the peaks of two snapshots by category, module and class of sizes (column ``by``).

    Of each device and ``by``, ``delta_bytes`` sums to the difference of the peaks.
    """
    return table(
        CHANGED_TOTALS,
        (
            {"device": device.after.device, "by": by, **row.to_json()}
            for device in difference.devices
            for by, rows in (("category", device.categories), ("module", device.modules), ("size", device.sizes))
            for row in rows
        ),
    )


def _step(row: StepRow, level: Bytes) -> dict[str, Any]:
    site = row.dominant and row.dominant.site
    return {
        **vars(row),
        **{f"delta_{name}": size for name, size in vars(row.delta).items()},
        **{f"since_good_{name}": size for name, size in vars(level).items()},
        "delta_overhead_bytes": row.delta.overhead_bytes,
        "keys": _listed(row.keys),
        "dominant_category": row.dominant and row.dominant.category,
        "dominant_file": site and site.file,
        "dominant_line": site and site.line,
        "dominant_bytes": row.dominant and row.dominant.delta_bytes,
    }


def _probe(row: ProbeRecord) -> dict[str, Any]:
    return {**row.to_json(), **_sizes(row.peak), "keys": _listed(row.keys)}


def _sizes(peak: Bytes | None) -> dict[str, Any]:
    return vars(peak) if peak else {"requested_bytes": None, "reserved_bytes": None}


def _listed(keys: tuple[str, ...] | None) -> str | None:
    return None if keys is None else ", ".join(keys)


def table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the named fields of ``rows``, in the types that ``columns`` gives them."""
    kept = list(rows)
    return pd.DataFrame({name: pd.Series([row[name] for row in kept], dtype=kind) for name, kind in columns.items()})


def _sites(trace: Trace, stack_ids: NDArray[np.int32], choose: SiteOf) -> pd.Categorical[str]:
    chosen = [choose(stack, "") for stack in trace.stacks]
    return _words(stack_ids, [str(site) if site else "" for site in chosen])


def _words(ids: NDArray[np.integer], words: Sequence[str]) -> pd.Categorical[str]:
    """Return ``words[id]`` for each id; only words that occur are categories, and equal words are one."""
    used, place = np.unique(ids, return_inverse=True)
    number: dict[str, int] = {}
    codes = [number.setdefault(words[index], len(number)) for index in used.tolist()]
    categories = pd.Index(list(number), dtype=str)
    return pd.Categorical.from_codes(np.array(codes, dtype=np.int64)[place], categories=categories)


def tables_of(found: Explanation | RankSet) -> dict[str, pd.DataFrame]:
    """Return the tables by name: ``categories``, ``sites``, ``modules``, ``tried``, ``pins``, ``timeline``, and of a
    folder ``ranks``; those of a folder are of its worst rank. As in the report, what is live is that of the
    ``moment``: ``failure``, ``peak``, or ``end`` where the file has no events.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in EXPLAINED}
    for device in found.worst.devices:
        for name, own in _explained(device).items():
            rows[name] += [{"device": device.index, "moment": moment(device), **row} for row in own]
    tables = {name: table(columns, rows[name]) for name, columns in EXPLAINED.items()}
    if isinstance(found, RankSet):
        tables["ranks"] = table(RANKS, ({**vars(row), **vars(row.peak)} for row in found.rows))
    return tables


def _explained(device: DeviceExplanation) -> dict[str, Iterable[Mapping[str, Any]]]:
    parts, curves = device.failure or device.composition, device.curves
    unknown = {} if device.knows_card else {"margin_bytes": None}
    points = zip(curves.events, curves.requested, curves.reserved, strict=True)
    pins = device.pins.lines if device.pins else ()
    return {
        "categories": map(asdict, parts.categories),
        "sites": ({**vars(row), **vars(row.site)} for row in parts.sites),
        "modules": map(asdict, parts.modules),
        "tried": ({**vars(fix), **unknown} for fix in device.verdict.tried),
        "pins": ({**vars(line), **vars(line.site)} for line in pins),
        "timeline": ({"event": at, "requested_bytes": live, "reserved_bytes": held} for at, live, held in points),
    }


def combinations(sweep: Sweep) -> pd.DataFrame:
    """Return the rows of ``sweep`` in their order; what was not measured is empty."""
    axes = {axis.name: "string" for axis in sweep.axes}
    columns = axes | COMBINATIONS | _columns("slowdown:f is_on_front:b message:s")
    return table(columns, (_combination(row, list(axes)) for row in sweep.rows))


def _combination(row: SweepRow, axes: Sequence[str]) -> dict[str, Any]:
    values = dict(zip(axes, row.values, strict=True))
    return {**vars(row.variant), **_sizes(row.variant.peak), **vars(row), **values}
