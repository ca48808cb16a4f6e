"""A sweep as a table: one row a combination, one column an axis, sizes in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from oomscope.probe.tuning.sweep import Sweep


def combinations(sweep: Sweep) -> pd.DataFrame:
    """Return the rows of ``sweep`` in their order; what was not measured is empty."""
    import pandas as pd

    names = [axis.name for axis in sweep.axes]
    rows = [
        {
            **dict(zip(names, row.values, strict=True)),
            "outcome": row.variant.outcome,
            "verdict": row.variant.verdict,
            "rank": row.variant.rank,
            "requested_bytes": row.variant.requested_bytes,
            "reserved_bytes": row.variant.reserved_bytes,
            "margin_bytes": row.variant.margin_bytes,
            "host_bytes": row.variant.host_bytes,
            "step_s": row.variant.step_s,
            "slowdown": row.slowdown,
            "is_on_front": row.is_on_front,
            "message": row.variant.message,
        }
        for row in sweep.rows
    ]
    sizes = ("rank", "requested_bytes", "reserved_bytes", "margin_bytes", "host_bytes")
    return pd.DataFrame(rows).astype(dict.fromkeys(sizes, "Int64"))
