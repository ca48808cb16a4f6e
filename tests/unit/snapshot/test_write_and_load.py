"""What is written comes back; PyTorch's own tools read it; what is malformed is refused in one line."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import SnapshotError
from oomscope.snapshot.metadata import Metadata, from_text, to_text
from oomscope.snapshot.provenance import Card, Provenance, Refused, provenance_of
from oomscope.snapshot.read.build_snapshot import snapshot_of
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action, Annotation, Category, Frame, Moment, Snapshot, Trace
from oomscope.snapshot.write import to_document, write_snapshot
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.strategies import recordings


def events_of(trace: Trace) -> list[tuple[object, ...]]:
    """Return the events with what they index, whatever the order in which that was interned."""
    return [
        (
            *(getattr(trace, name)[i] for name in ("action", "address", "size", "stream", "time_us", "category")),
            trace.stacks[trace.stack_id[i]],
            trace.moments[trace.moment_id[i]],
            trace.modules[trace.module_id[i]],
            trace.stacks[trace.forward_stack_id[i]],
            trace.pools[trace.pool_id[i]],
        )
        for i in range(len(trace))
    ]


@given(recordings())
def test_a_snapshot_survives_the_round_trip(recording):
    trace, segments, _ = recording
    snapshot = Snapshot(
        segments=segments,
        traces=(trace,),
        allocator_settings={"expandable_segments": True},
        annotations=(Annotation(name="step", stage="START", device=0, time_us=5),),
    )
    document = to_document(snapshot)
    for copy in (pickle.loads(pickle.dumps(document, protocol=4)), json.loads(json.dumps(document))):
        again = snapshot_of(copy, where="x")
        assert again.segments == segments
        assert again.allocator_settings == {"expandable_segments": True}
        assert again.annotations == snapshot.annotations
        assert events_of(again.traces[0]) == events_of(trace)
    for name, column in vars(trace).items():
        if isinstance(column, np.ndarray):
            assert getattr(again.traces[0], name).dtype == column.dtype


METADATA = st.builds(
    Metadata,
    st.builds(Moment, st.text(), st.integers(-1, 2**31 - 1), st.integers(-1, 2**31 - 1)),
    st.sampled_from(Category),
    st.text(),
    st.lists(st.builds(Frame, st.text(), st.integers(), st.text()), max_size=3).map(tuple),
)


@given(METADATA)
def test_metadata_survives_the_round_trip(metadata):
    assert from_text(to_text(metadata)) == metadata


@given(st.text() | st.text().map(lambda text: "{" + text))
def test_foreign_metadata_is_unknown_and_never_fails(text):
    from_text(text)


def test_metadata_of_wrong_types_is_unknown():
    for known in ({"phase": 3, "iter": "x", "mb": True, "cat": "soup", "mod": []}, {"fwd": [["a.py", "1", "f"]]}):
        assert from_text(json.dumps(known)) == Metadata()


def one_event(action: Action = Action.ALLOC, **keywords) -> Snapshot:
    builder = TraceBuilder()
    builder.event(action, 2**40, 700, **keywords)
    return Snapshot(segments=(), traces=(builder.build(),))


def test_the_file_is_what_torch_writes(tmp_path):
    path = write_snapshot(
        one_event(stack=(Frame("a.py", 1, "f"),), moment=Moment("forward", 0, 1), category=Category.ACTIVATION),
        tmp_path / "s.pickle",
    )
    document = pickle.loads(path.read_bytes())
    assert set(document) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    (event,) = document["device_traces"][0]
    assert event["action"] == "alloc"
    assert (event["addr"], event["size"], event["stream"]) == (2**40, 700, 0)
    assert event["frames"] == [{"filename": "a.py", "line": 1, "name": "f"}]
    assert json.loads(event["user_metadata"]) == {"phase": "forward", "iter": 0, "mb": 1, "cat": "activation"}


def test_an_oom_event_carries_the_free_bytes_of_the_device(tmp_path):
    path = write_snapshot(one_event(Action.OOM), tmp_path / "s.pickle")
    (event,) = pickle.loads(path.read_bytes())["device_traces"][0]
    assert event["device_free"] == 2**40
    assert "addr" not in event
    assert load_snapshot(path).traces[0].address.tolist() == [2**40]


READ_BY_VIEWER = frozenset(
    """PROTO APPEND APPENDS TUPLE NEWFALSE NEWTRUE NONE BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME
    LONG1 LONG_BINGET MARK MEMOIZE BINPUT LONG_BINPUT SETITEMS SETITEM DICT SHORT_BINUNICODE BINUNICODE STOP
    EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 BINFLOAT""".split()  # noqa: SIM905 - a list of thirty is no clearer
)


def test_the_web_viewer_knows_every_opcode(tmp_path):
    """The opcodes that PyTorch's MemoryViz.js reads; it refuses protocols other than 2 to 4."""
    path = write_snapshot(one_event(stack=(Frame("a.py", 70_000, "f"),), time_us=2**50), tmp_path / "s.pickle")
    used = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert used <= READ_BY_VIEWER


def test_a_file_is_not_overwritten_unless_forced(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_text("precious")
    with pytest.raises(SnapshotError, match="file exists"):
        write_snapshot(one_event(), path)
    assert path.read_text() == "precious"
    write_snapshot(one_event(), path, force=True)
    assert len(load_snapshot(path).traces[0]) == 1


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_args, **_keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SnapshotError, match="No space left"):
        write_snapshot(one_event(), tmp_path / "s.pickle")
    assert list(tmp_path.iterdir()) == []


# --- what must be refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file is empty"),
        (b"not a pickle at all", "neither a pickle nor JSON"),
        (pickle.dumps({"segments": []})[:-3], "not a readable pickle"),
        (b"\x80\x04P1\n.", "outside itself"),
        (b'{"segments": ', "not a readable pickle or JSON"),
        (pickle.dumps(3), "not a memory snapshot"),
        (pickle.dumps({"segments": 3}), "segments is no list"),
        (pickle.dumps({"segments": [3]}), r"segments\[\] is no mapping"),
        (pickle.dumps({"segments": [{"address": "x"}]}), r"segments\[\]\.address is no 64-bit integer"),
        (pickle.dumps({"segments": [{"address": 1, "total_size": -1}]}), "is no number of bytes"),
        (
            pickle.dumps({"segments": [{"address": 1, "total_size": 1, "blocks": [{"size": 1, "state": "odd"}]}]}),
            r"segments\[\]\.blocks\[\]\.state is no block state",
        ),
        (pickle.dumps({"segments": [], "device_traces": [[1]]}), r"device_traces\[0\]\[\] is no mapping"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": 1}]]}), r"\[\]\.action is no text"),
        (
            pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1.5}]]}),
            r"device_traces\[0\]\[\]\.size is no 64-bit integer",
        ),
        (
            pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "frames": [{"line": "x"}]}]]}),
            "a frame of",
        ),
    ],
)
def test_malformed_files_are_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(SnapshotError, match=r"nowhere\.pickle: cannot read: No such file"):
        load_snapshot(tmp_path / "nowhere.pickle")
    path = tmp_path / "bad.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=message) as refusal:
        load_snapshot(path)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith(str(path))


# --- schema versions -----------------------------------------------------------------------------------------


def test_torch_2_0_blocks_get_their_addresses_and_stacks():
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    document = [
        {
            "device": 0,
            "address": 4096,
            "total_size": 2048,
            "stream": 0,
            "segment_type": "small",
            "blocks": [
                {"size": 512, "state": "inactive"},
                {
                    "size": 1536,
                    "state": "active_awaiting_free",
                    "history": [{"addr": 4608, "real_size": 1000, "frames": frames}],
                },
            ],
        }
    ]
    snapshot = snapshot_of(document, where="x")
    first, second = snapshot.segments[0].blocks
    assert (first.address, second.address) == (4096, 4608)
    assert second.requested_size == 1000
    assert second.state == "active_pending_free"
    assert second.stack == (Frame("a.py", 3, "f"),)
    assert snapshot.missing == ("allocator_settings", "external_annotations", "trace")


def test_spans_of_spring_2024_become_annotations():
    frame = [{"filename": "## step ##", "line": 0, "name": "START"}]
    events = [{"action": "user_defined", "addr": 0, "size": 0, "stream": 0, "time_us": 5, "frames": frame}]
    snapshot = snapshot_of({"segments": [], "device_traces": [events]}, where="x")
    assert snapshot.annotations == (Annotation(name="## step ##", stage="START", device=0, time_us=5),)


@pytest.mark.parametrize("told", [{}, {"pool_id": (0, 0)}], ids=["before 2026", "of 2026"])
def test_the_default_pool_may_be_named_or_not(told):
    event = {"action": "alloc", "addr": 1, "size": 2, "stream": 0} | told
    [trace] = snapshot_of({"segments": [], "device_traces": [[event]]}, where="x").traces
    assert trace.pools == ((0, 0),)
    assert trace.names_pools == bool(told)


def test_unknown_actions_and_foreign_keys_are_kept_and_reported():
    events = [{"action": "teleport", "addr": 1, "size": 2, "stream": 0, "colour": "red", "user_metadata": {"a": 1}}]
    trace = snapshot_of({"segments": [], "device_traces": [[], events]}, where="x").traces[0]
    assert trace.device == 1
    assert trace.unknown_actions == ("teleport",)
    assert trace.action.tolist() == [Action.UNKNOWN]
    assert trace.missing == ("time_us", "frames")


# --- what a recording says of itself ---------------------------------------------------------------------------


RECORDED = Provenance(
    reason="oom",
    rank=3,
    world_size=8,
    iteration=12,
    host="node",
    pid=77,
    time="2026-01-02T03:04:05+00:00",
    torch_version="2.13.0",
    max_entries=1000,
    stacks="python",
    cards=(Card(index=1, name="H200", total_bytes=150, free_bytes=4, memory_fraction=0.5),),
    refused=Refused(device=1, requested_bytes=9, free_bytes=4),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ROWS = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=3)
VALUES = ROWS | st.lists(ROWS, max_size=3)


def test_provenance_is_written_and_read_back(tmp_path: Path) -> None:
    path = write_snapshot(Snapshot(segments=(), traces=(), provenance=RECORDED), tmp_path / "s.pickle")
    assert load_snapshot(path).provenance == RECORDED


@pytest.mark.parametrize("damage", [{"rank": "3"}, {"rank": True}, {"cards": 5}, {"cards": [{"name": "H200"}]}])
def test_damaged_provenance_is_unknown(damage: dict[str, object]) -> None:
    read = provenance_of(RECORDED.to_json() | damage)
    assert read is not None
    assert (read.rank, len(read.cards)) in {(-1, 1), (3, 0)}
    assert read.refused == RECORDED.refused


@given(st.dictionaries(st.sampled_from(sorted(RECORDED.to_json())), VALUES))
def test_no_provenance_fails_to_load(damage: dict[str, object]) -> None:
    assert isinstance(provenance_of(RECORDED.to_json() | damage), Provenance)
