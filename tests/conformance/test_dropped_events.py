"""Snapshots that lost their oldest events, as a full ring loses them: what is left is explained and compared exactly.

    python tests/conformance/test_dropped_events.py FOLDER

cuts every snapshot of FOLDER at twenty places, where the tests take a few.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oomscope.document import Document
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.explain.analysis import analyse
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.read.load import load_snapshot
from tests.conformance.test_snapshot_files import FIXTURES, RECORDED

PLACES = 20
FEW = (13, PLACES)
"""Of twenty equal steps through the events; at the last one all are gone."""
MADE = ("torch-2.6-wrapped-gradients.pickle", "torch-2.1-two-devices.pickle", "torch-2.3-spans.pickle")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_without_their_oldest_events(ground_truth, tmp_path, name):
    hold(ground_truth / "snapshots" / name, tmp_path, FEW)


@pytest.mark.parametrize("name", MADE)
def test_fixtures_without_their_oldest_events(tmp_path, name):
    hold(FIXTURES / name, tmp_path, FEW)


def hold(path: Path, folder: Path, places: Sequence[int]) -> int:
    """Hold what is said of ``path`` without its oldest events to the whole file; return how often it was cut."""
    whole = load_snapshot(path)
    walked = {trace.device: Timeline.of(trace, whole.segments) for trace in whole.traces}
    cuts = 0
    for place, file in cut_files(path, folder, places):
        cuts += 1
        rest = load_snapshot(file)
        left = {trace.device: Timeline.of(trace, rest.segments) for trace in rest.traces}
        for device, timeline in left.items():
            follows_the_whole(timeline, walked[device])
        name = str(file)
        for explained in document(explanation_of(rest, analyse(rest, file=name), file=name))["devices"]:
            sums_up(explained, left[explained["index"]], place)
        both = Named(str(path), whole), Named(name, rest)
        for before, after in (both, both[::-1]):
            for compared in document(diff(before, after))["devices"]:
                balances(compared, place)
    return cuts


def cut_files(path: Path, folder: Path, places: Sequence[int]) -> Iterator[tuple[int, Path]]:
    """Yield each place with the file whose traces begin there."""
    data = path.read_bytes()
    content = pickle.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    traces = content["device_traces"] if isinstance(content, dict) else []
    longest = max(map(len, traces), default=0)
    for place in dict.fromkeys(round(longest * step / PLACES) for step in places):
        file = folder / f"from-{place}.pickle"
        file.write_bytes(pickle.dumps({**content, "device_traces": [trace[place:] for trace in traces]}))
        yield place, file
        file.unlink()


def follows_the_whole(rest: Timeline, whole: Timeline) -> None:
    """Hold every curve of ``rest`` to the end of the whole one's, and its beginning to the moment of the cut."""
    start = len(whole.trace) - len(rest.trace)
    for name in ("requested", "held", "reserved"):
        assert np.array_equal(getattr(rest, name), getattr(whole, name)[start:]), name
    assert rest.initial_requested_bytes == whole.requested_bytes_at(start - 1)
    found = rest.reconciliation
    assert (found.difference_bytes, found.inconsistent_events) == (0, 0)


def document(found: Document) -> Any:
    """Return the JSON that a command prints of what it found."""
    return json.loads(json.dumps(found.to_json()))


def sums_up(explained: dict[str, Any], rest: Timeline, place: int) -> None:
    """Hold the tables of a device at its peak to the requested bytes there, which may be before the first event."""
    live = explained["peak"]["requested_bytes"]
    assert live == max([rest.initial_requested_bytes, *rest.requested.tolist()]), place
    for table in ("categories", "sites", "modules", "size_classes"):
        assert sum(row["bytes"] for row in explained[table]) == live, (table, place)
    assert explained["difference_bytes"] == 0
    drawn = explained["timeline"]
    assert list(map(sum, zip(*drawn["categories"].values(), strict=True))) == drawn["requested"], place


def balances(compared: dict[str, Any], place: int) -> None:
    """Hold the tables of a comparison to the difference of the peaks."""
    delta = compared["after"]["peak"]["requested_bytes"] - compared["before"]["peak"]["requested_bytes"]
    assert compared["delta_bytes"] == delta
    for table in ("lines", "categories", "modules", "sizes"):
        assert sum(row["delta_bytes"] for row in compared[table]) == delta, (table, place)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for found in sorted(Path(sys.argv[1]).glob("*.p*k*")):
            print(found.name, hold(found, Path(made), range(1, PLACES + 1)), "cuts hold", flush=True)
