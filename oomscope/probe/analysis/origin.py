"""What a probe's snapshot says of itself: the rank played, the card, the ring, and whose rules the allocator followed.

With it the file answers for itself when ``oomscope explain`` reads it later. Time and machine are left out: two runs
of one job write equal files.
"""

from __future__ import annotations

from oomscope.probe.job import ProbeJob
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.probe.measurement import Measurement
from oomscope.snapshot.provenance import Card, Provenance


def origin_of(measurement: Measurement, job: ProbeJob) -> Provenance:
    """Return the provenance of ``measurement.snapshot``, as it stood when the run ended."""
    return Provenance(
        reason="end",
        rank=job.rank,
        world_size=job.world_size,
        torch_version=installed_torch(),
        max_entries=job.max_entries,
        stacks="python",
        cards=tuple(_card(measurement, trace.device) for trace in measurement.snapshot.traces),
    )


def _card(measurement: Measurement, index: int) -> Card:
    budget = measurement.device
    total = budget.card_bytes or budget.limit_bytes
    held = sum(segment.total_size for segment in measurement.snapshot.segments if segment.device == index)
    return Card(
        index=index,
        name=budget.gpu,
        total_bytes=total,
        free_bytes=max(0, total - budget.non_torch_bytes - budget.other_process_bytes - held),
        memory_fraction=budget.fraction or 1.0,
    )
