"""What a recorded run left, read by the same code whoever recorded it."""

from __future__ import annotations

from oomscope.probe.recording.reading import last_oom, stats_of
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.trace import Action, Frame, Snapshot


def test_the_counters_are_torchs() -> None:
    names = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
    counters = {f"{name}.all.{which}": 10 * i for i, name in enumerate(names) for which in ("peak", "current")}
    stats = stats_of(counters | {"num_alloc_retries": 2, "num_ooms": 1, "inactive_split.all.peak": 9})
    assert (stats.allocated_bytes_peak, stats.active_bytes_peak, stats.reserved_bytes_peak) == (0, 10, 20)
    assert (stats.requested_bytes_peak, stats.num_alloc_retries, stats.num_ooms) == (30, 2, 1)


def test_the_last_failure_of_the_device_is_found() -> None:
    traces = []
    for device in (0, 1):
        builder = TraceBuilder(device)
        for line in (1, 2):
            builder.event(Action.ALLOC, 0x100 * line, 512)
            builder.event(Action.OOM, 0, 512 * line, stack=(Frame("train.py", 10 * device + line, "step"),))
        traces.append(builder.build())
    snapshot = Snapshot(segments=(), traces=tuple(traces))
    assert last_oom(snapshot, 1) == (3, (Frame("train.py", 12, "step"),), 1024)
    assert last_oom(snapshot, 2) == (None, (), None)
