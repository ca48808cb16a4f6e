from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.probe.result import ProbeResult, RunCurves
from oomscope.snapshot.timeline import Timeline
from tests.unit.report import results
from tests.unit.snapshot.strategies import recordings


@settings(max_examples=30)
@given(recordings(), st.integers(1, 50))
def test_no_peak_is_lost_and_no_curve_is_longer_than_asked(recording, points: int) -> None:
    trace, segments, live = recording
    timeline = Timeline.of(trace, segments)
    curves = RunCurves.of(timeline, points)
    if not live:
        assert curves is None
        return
    assert max(curves.requested_bytes) == max(live)
    assert max(curves.reserved_bytes) == max(timeline.reserved.tolist())
    assert len(curves.requested_bytes) == len(curves.reserved_bytes) == len(curves.iterations) == min(points, len(live))
    assert list(curves.iterations) == sorted(curves.iterations)


def test_they_come_back_from_json() -> None:
    curves = RunCurves(requested_bytes=(1, 2), reserved_bytes=(2, 2), iterations=(-1, 0))
    result = replace(results.OOM, curves=curves)
    assert ProbeResult.from_json(json.loads(json.dumps(result.to_json()))) == result
