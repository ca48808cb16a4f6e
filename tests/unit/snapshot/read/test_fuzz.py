"""Damaged bytes and documents of wrong types load or are refused; nothing crashes, hangs or eats the memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.errors import SnapshotError
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.build_snapshot import snapshot_from
from oomscope.snapshot.read.snapshot_fields import flatten
from oomscope.snapshot.trace import Snapshot
from oomscope.snapshot.write import to_document
from tests.unit.snapshot import fuzz
from tests.unit.snapshot.strategies import recordings

FIXTURES = sorted((Path(__file__).parents[4] / "fixtures" / "snapshots").glob("torch-*"))


def test_damaged_bytes_are_refused_or_read_and_every_command_reports_what_loads():
    found = fuzz.run(FIXTURES, first=0, count=300, timeout=120, commands=True)
    assert found.total() == 300
    assert found["refused"] > 100
    assert found["loaded"] > 5


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from((-1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30)),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from(("alloc", "free_completed", "segment_alloc", "active_pending_free", "\ud800")),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [[]]),  # made anew each time, since what is drawn may be written into
    st.just((0, "x")),
)


def places(node: object) -> list[tuple[object, object]]:
    """Return every container and key of a document, deep ones too."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in places(node[key])]


@settings(deadline=None, max_examples=50)
@given(recordings(), st.data())
def test_documents_of_wrong_types_are_refused_or_read(recording, data):
    trace, segments, _ = recording
    settings_ = {"expandable_segments": False, "roundup_power2_divisions": {"1": 0}}
    document = to_document(Snapshot(segments=segments, traces=(trace,), allocator_settings=settings_))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(document)))
        if data.draw(st.booleans()) and isinstance(container, dict):
            container.pop(key, None)
        elif not isinstance(container, list) or key < len(container):
            container[key] = data.draw(ODD)
    with contextlib.suppress(SnapshotError):
        snapshot = snapshot_from(flatten(document, where="x"))
        for each in snapshot.traces:
            found = Timeline.of(each, snapshot.segments).reconciliation
            assert sum(reason.difference_bytes for reason in found.reasons) == found.difference_bytes


@settings(deadline=None, max_examples=8)
@given(recordings(), st.data())
def test_every_command_reports_documents_of_odd_numbers(recording, data):
    trace, segments, _ = recording
    document = to_document(Snapshot(segments=segments, traces=(trace,)))
    numbers = [(node, key) for node, key in places(document) if isinstance(node, dict) and type(node[key]) is int]
    for _ in range(data.draw(st.integers(1, 3))):
        node, key = data.draw(st.sampled_from(numbers))
        node[key] = data.draw(st.sampled_from((0, 1, -1, 511, 2**20, 2**40, 2**62, 2**63 - 1)))
    with contextlib.suppress(SnapshotError):
        fuzz.used(snapshot_from(flatten(document, where="x")))


@pytest.mark.parametrize(
    ("name", "number"), [("torch-2.6-wrapped.pickle.gz", 100041), ("torch-2.13-oom.pickle.zst", 117307)]
)
def test_segments_with_blocks_that_the_events_deny_have_no_tenants(name, number):
    found = fuzz.run([FIXTURES[0].parent / name], first=number, count=1, timeout=60, commands=True)
    assert dict(found) == {"loaded": 1}


def test_the_script_beside_the_fixtures_makes_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, FIXTURES[0].parent / "build.py", tmp_path], check=True, capture_output=True)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [path.name for path in FIXTURES]
    for path in FIXTURES:
        if path.suffix in {".pickle", ".json"}:  # what libraries make of the others varies by version
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()
