"""The comparison of a public snapshot with its program, and, given a checkout, the programs themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from oomscope.snapshot.read.build_snapshot import snapshot_of as snapshot_from_values
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Snapshot
from tests.conformance.program_on_card import edited
from tests.conformance.public_programs import PROGRAMS, program_of
from tests.conformance.recorded_programs import POLICIES, best_policy, compare, line_of

CHECKOUT = "OOMSCOPE_RECORDED_PROGRAM"
"""The variable that names a checkout of Wedsonlin/assignment2-systems at 8630bcf."""
NEEDED_TORCH = "2.11"


def snapshot_of(*sizes: int, reserved: int = 2 << 20) -> Snapshot:
    """A snapshot of allocations and one segment."""
    events = [{"action": "alloc", "addr": 512 * place, "size": size, "stream": 0} for place, size in enumerate(sizes)]
    segment: dict[str, Any] = {"address": 0, "total_size": reserved, "stream": 0, "segment_type": "small", "blocks": []}
    document = {"segments": [segment], "device_traces": [events]}
    return snapshot_from_values(document, where="test")


def test_equal_traces_hold() -> None:
    found = compare(snapshot_of(512, 1024), snapshot_of(512, 1024))
    assert (found.identical, found.first_difference, found.holds) == (2, "", True)


def test_the_first_difference_is_reported_and_identical_events_after_it_count() -> None:
    found = compare(snapshot_of(512, 1024, 512), snapshot_of(512, 2048, 512))
    assert found.first_difference == "event 1: recorded alloc 1,024, measured alloc 2,048"
    assert (found.identical, found.holds) == (2, False)


@pytest.mark.parametrize(
    ("recorded", "measured", "longer"), [((512, 1024), (512,), "recorded"), ((1,), (1, 1024), "measured")]
)
def test_a_trace_that_goes_on_differs(recorded: tuple[int, ...], measured: tuple[int, ...], longer: str) -> None:
    found = compare(snapshot_of(*recorded), snapshot_of(*measured))
    assert found.first_difference == f"event 1: {longer} only, alloc 1,024"
    assert not found.holds


@pytest.mark.parametrize(("reserved", "holds"), [(1000, True), (1005, True), (995, True), (1006, False), (994, False)])
def test_reserved_bytes_may_be_half_a_percent_off(reserved: int, holds: bool) -> None:
    assert compare(snapshot_of(512, reserved=1000), snapshot_of(512, reserved=reserved)).holds is holds


def test_a_line_says_what_is_equal_and_under_which_addresses() -> None:
    found = compare(snapshot_of(512, reserved=1000), snapshot_of(512, reserved=1000))
    assert line_of("a.pickle", "scattered", found) == (
        "ok  a.pickle: 1 of 1 events identical; first difference: none; "
        "reserved 1,000 recorded, 1,000 measured (equal, scattered)"
    )


def test_an_edit_that_finds_nothing_means_another_commit() -> None:
    assert edited("a = 1", (("1", "2"),)) == "a = 2"
    with pytest.raises(ValueError, match="not the commit"):
        edited("a = 1", (("3", "2"),))


def test_every_programs_arguments_follow_from_the_file_name() -> None:
    found = program_of("wedson_medium_512_inference_memory_snapshot.pickle")
    assert found is not None
    program, named = found
    assert {"--context_length=512", "--autocast=true", "--pattern=forward-only"} <= set(program.arguments(named))
    assert program_of("somebody.pickle") is None


def test_recorded_programs_repeat_every_event(ground_truth: Path) -> None:
    """Needs einops, einx and jaxtyping too; 10 s a snapshot."""
    checkout = os.environ.get(CHECKOUT)
    if checkout is None:
        pytest.skip(f"{CHECKOUT} names no checkout of {PROGRAMS[0].repository} at {PROGRAMS[0].commit}")
    import torch

    if not torch.__version__.startswith(NEEDED_TORCH):
        pytest.skip(f"recorded by torch {NEEDED_TORCH}; this is {torch.__version__}")
    for path in sorted((ground_truth / "snapshots").glob("wedson_*")):
        found = program_of(path.name)
        assert found is not None
        _, comparison = best_policy(load_snapshot(path), *found, Path(checkout), POLICIES)
        assert comparison.holds, path.name
        assert not comparison.reserved_error, path.name
