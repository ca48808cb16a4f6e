"""What a real card needed, held against the virtual one: the same programs under the same torch.

Measured on an H100 as ``tests/gpu/measure.py`` does. Nine programs that need torch alone are probed here on the virtual
card; the others, and the configurations of the bundled transformer, stand in docs/accuracy.md.
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.truth.measuring import Bench
from tests.gpu import measure

MEASURED = Path(__file__).parents[2] / "fixtures" / "snapshots" / "cuda" / "measured.json.gz"
REASONS = {
    "convnet": "cuDNN's workspaces of convolutions, which it does not publish",
    "lstm": "cuDNN's workspace of recurrent networks",
}
"""By program: why its requests differ."""
SAME = ("gpt-bf16", "sdpa-efficient-fp32", "graphs", "checkpointed", "accumulate-2", "varying expandable", "fp8")


def measured() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(MEASURED.read_bytes()))
    return document


def real(name: str) -> dict[str, Any]:
    return next(row for row in measured()["programs"] if row["name"] == name)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    wanted, ours = (version.partition("+")[0] for version in (measured()["torch"], torch.__version__))
    if wanted != ours:
        pytest.skip(f"measured with torch {wanted}, and this is {ours} (make test-torch VERSION={wanted} installs it)")
    return Bench(card="virtual", folder=tmp_path_factory.mktemp("measured"), at_once=1, until=time.monotonic() + 3600)


@pytest.mark.parametrize("name", SAME)
def test_a_program_asks_for_the_same_on_both_cards(bench: Bench, name: str):
    mine = measure.program(bench, name)
    assert measure.differences(real(name), mine) == []


@pytest.mark.parametrize("name", REASONS)
def test_what_only_the_library_knows_differs(bench: Bench, name: str):
    theirs, mine = real(name), measure.program(bench, name)
    assert (mine["outcome"], mine["phase"]) == ("fits", theirs["phase"])
    assert 0.8 * theirs["requested_bytes"] < mine["requested_bytes"] < theirs["requested_bytes"], REASONS[name]


def test_a_difference_is_named_with_both_numbers():
    row = {"requested_bytes": 200, "allocated_bytes": 512, "reserved_bytes": 2 << 20, "outcome": "fits", "digest": "a"}
    assert measure.differences(row, dict(row)) == []
    assert measure.differences(row, {**row, "requested_bytes": 190, "digest": "b"}) == [
        "requested_bytes 190 for 200 (-5.00 %)",
        "requests",
    ]
    assert measure.differences(row, {"outcome": "error"})[-2:] == ["outcome error for fits", "requests"]


def test_the_real_card_measured_at_least_forty():
    document = measured()
    assert document["card"] == "cuda"
    assert len(document["accuracy"]) + len(document["programs"]) >= 40
    assert all(row["outcome"] == "fits" for part in ("accuracy", "programs") for row in document[part])
