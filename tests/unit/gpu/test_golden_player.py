"""The player of recorded traces, before an emulated allocator in the place of the card's own."""

from __future__ import annotations

from typing import Any

import pytest

from oomscope.allocator import Driver
from oomscope.units import MiB
from tests.conformance.allocator_golden import records
from tests.conftest import ROOT
from tests.gpu.captures import golden
from tests.gpu.emulated import Cuda, emulated_torch, on_card

TOTAL = 80 << 30


def played(record: dict[str, Any]) -> tuple[dict[str, Any], Cuda]:
    fake = emulated_torch(record["conf"], Driver(TOTAL))
    with on_card(fake):
        return golden.play({"record": record}), fake.cuda


def recorded(family: str) -> list[dict[str, Any]]:
    found = list(records(ROOT / "fixtures" / "allocator-golden" / f"{family}.jsonl.gz"))
    assert found
    return found


def stood_for(record: dict[str, Any]) -> bool:
    """Whether a fraction of a larger card is the very same to ``record``: not where it alone turns something on."""
    by_fraction = "garbage" in record["conf"] and record["fraction"] is None
    partly_mapped = "expandable" in record["conf"] and record["expected"]["num_alloc_retries"] > 0
    by_setting = "per_process_memory_fraction" in record["conf"]
    return not (by_fraction or partly_mapped or by_setting) and "2.11.0" in record["identical_on"]


@pytest.mark.parametrize("record", [*filter(stood_for, recorded("records"))], ids=lambda record: record["name"])
def test_the_fraction_stands_for_the_device_of_the_record(record):
    given, _ = played(record)
    trace = given["trace"]
    taken = zip(trace["action"], trace["size"], strict=True)
    events = [event for event in taken if event[0] == "oom" or event[0].startswith("segment")]
    assert events == [(event[1], event[4]) for event in record["expected"]["events"]]
    assert [bool(place) for place in given["placements"]] == [bool(place) for place in record["expected"]["placements"]]


def test_what_others_take_lowers_the_limit():
    ops = [["m", 1, 30 * MiB], ["o", 40 * MiB], ["m", 2, 40 * MiB], ["f", 1], ["f", 2], ["o", 0], ["m", 3, 70 * MiB]]
    record = {"name": "o", "conf": "", "total_bytes": 100 * MiB, "other_bytes": 0, "fraction": None, "ops": ops}
    given, _ = played(record)
    assert given["ooms"] == [2]
    assert given["limit_bytes"] == [100 * MiB, 60 * MiB, 100 * MiB]


def test_streams_that_are_not_ready_are_kept_busy():
    ops = [["m", 1, MiB], ["r", 1, 2], ["p", 1], ["f", 1], ["s"], ["p", 0], ["e"]]
    record = {"name": "p", "conf": "", "total_bytes": 100 * MiB, "other_bytes": 0, "fraction": None, "ops": ops}
    given, cuda = played(record)
    assert cuda.slept == [0, 1, 2]
    assert given["streams"] == [0, 1, 2]
    assert given["holds"] == [{"op": 2, "until": 5, "outlasted": True}]
    assert [(each["op"], each["stats"]["reserved_bytes.all.current"]) for each in given["markers"]] == [(4, 2 * MiB)]


def test_an_operation_of_an_unknown_kind_is_refused():
    record = {"name": "q", "conf": "", "total_bytes": MiB, "other_bytes": 0, "fraction": None, "ops": [["q"]]}
    with pytest.raises(ValueError, match="operation 0 is of an unknown kind: 'q'"):
        played(record)
