"""What was captured on a real card holds without one; and the comparisons find what is made wrong on purpose."""

from __future__ import annotations

import copy
import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import card_captures as captures
from tests.conformance.card_captures import Item
from tests.gpu.captures import training
from tests.gpu.rehearse import rehearse

FOLDER = Path(__file__).parents[2] / "fixtures" / "snapshots" / "cuda"
REASONS: dict[tuple[str, str], str] = {}
"""By comparison and item: why the two differ; an item named here must differ."""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of captures by an emulated card and the simulated device."""
    folder = tmp_path_factory.mktemp("rehearsed")
    rehearse(folder, ways=1, records=4)
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    return folder


def captured(part: str, folder: Path = FOLDER) -> list[Item]:
    """Return the items of a part, which may lack where its README says so."""
    if not folder.exists():
        pytest.skip("no capture of a real card: no fixtures/snapshots/cuda (tests/gpu/RUNBOOK.md)")
    found = captures.items(folder, part)
    if not found and f"- {part}: all of it" in (folder / "README.md").read_text(encoding="utf-8"):
        pytest.skip(f"the capture of the card has no {part} (fixtures/snapshots/cuda/README.md)")
    assert found, f"{folder} has no {part}*.json.gz, and its README does not say that it was not captured"
    return found


def with_snapshots(part: str) -> Iterator[Item]:
    """Yield the items whose snapshot is kept."""
    found = [item for item in captured(part) if (FOLDER / item["file"]).exists()]
    assert found, f"the documents of {part} lie in fixtures/snapshots/cuda without a snapshot"
    yield from found


def unexplained(comparison: str, problems: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the problems that no reason is named for, and the reasons for which there is none."""
    named = {item for kind, item in REASONS if kind == comparison}
    idle = {item: ["differs no longer"] for item in named & problems.keys() if not problems[item]}
    return idle | {item: found for item, found in problems.items() if found and item not in named}


def test_a_part_may_lack_only_where_it_is_said(tmp_path: Path):
    with pytest.raises(pytest.skip.Exception, match="no capture of a real card"):
        captured("golden", tmp_path / "cuda")
    readme = tmp_path / "README.md"
    readme.write_text("Not captured:\n\n- golden: all of it\n")
    with pytest.raises(pytest.skip.Exception, match="has no golden"):
        captured("golden", tmp_path)
    with pytest.raises(AssertionError, match="has no failures"):
        captured("failures", tmp_path)


def test_the_emulator_plays_recorded_traces_as_the_card_did():
    comparable = [item for item in captured("golden") if not captures.released_early(item)]
    assert comparable
    problems = {captures.titled(item): captures.golden_differences(item) for item in comparable}
    assert unexplained("golden", problems) == {}


def test_every_failure_is_judged_as_it_was():
    assert unexplained("failures", failures_of(FOLDER, with_snapshots("failures"))) == {}


def test_the_emulator_repeats_training_event_for_event():
    problems = {
        captures.titled(item): captures.replay_problems(item, captures.snapshot(FOLDER / item["file"]))
        for item in with_snapshots("training")
    }
    assert unexplained("replay", problems) == {}


def test_the_simulated_device_needs_what_the_card_needed():
    [machine] = captured("machine")
    problems = {
        captures.titled(item): captures.simulation_problems(item, captures.snapshot(FOLDER / item["file"]), machine)
        for item in with_snapshots("training")
        if item["conf"] not in training.SETTINGS[1:]  # the allocator's part in these is replayed above
    }
    assert unexplained("simulation", problems) == {}


def test_the_simulated_device_takes_what_operations_took():
    [machine] = captured("machine")
    families = [item for item in captured("temporaries") if item["kind"] == "family"]
    assert families
    problems = {op: told for item in families for op, told in captures.operation_problems(item, machine).items()}
    assert unexplained("operations", problems) == {}


# ---- the comparisons themselves, on a rehearsal --------------------------------------------------------------------


def failures_of(folder: Path, items: Iterator[Item] | list[Item]) -> dict[str, list[str]]:
    every = captures.items(folder, "failures")
    problems = {}
    for item in items:
        others = [other for other in every if other["name"] == item["name"] and other["conf"] and not item["conf"]]
        found = captures.snapshot(folder / item["file"])
        problems[captures.titled(item)] = captures.failure_problems(item, others, found)
    return problems


def test_a_rehearsal_holds(rehearsed: Path):
    for item in captures.items(rehearsed, "golden"):
        assert captures.golden_differences(item) == [], item["name"]
    assert not any(failures_of(rehearsed, captures.items(rehearsed, "failures")).values())
    [machine] = captures.items(rehearsed, "machine")
    for item in captures.items(rehearsed, "training"):
        found = captures.snapshot(rehearsed / item["file"])
        assert captures.replay_problems(item, found) == []
        assert captures.simulation_problems(item, found, machine) == []
    for item in captures.items(rehearsed, "temporaries"):
        told = captures.operation_problems(item, machine)
        assert told
        assert not any(told.values())


def moved_block(item: Item) -> None:
    item["placements"][next(at for at, place in enumerate(item["placements"]) if place)] += 512


def lost_event(item: Item) -> None:
    at = item["trace"]["action"].index("free_completed")
    for column in item["trace"].values():
        del column[at]


def served_after_all(item: Item) -> None:
    item["ooms"] = [*item["ooms"], 1]


def another_counter(item: Item) -> None:
    item["stats"]["num_alloc_retries"] += 1


def larger_block(item: Item) -> None:
    item["segments"][0]["blocks"][0][1] += 512


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (moved_block, "placements"),
        (lost_event, "events"),
        (served_after_all, "ooms"),
        (another_counter, "stats"),
        (larger_block, "segments"),
    ],
)
def test_what_the_card_did_otherwise_is_found(rehearsed: Path, change: Callable[[Item], None], field: str):
    item = captures.items(rehearsed, "golden")[0]
    change(item)
    assert [text.partition(":")[0] for text in captures.golden_differences(item)] == [field]


def test_a_stream_that_was_let_go_early_makes_no_comparison(rehearsed: Path):
    item = captures.items(rehearsed, "golden")[0]
    assert not captures.released_early(item)
    assert captures.released_early({**item, "holds": [{"op": 3, "until": 9, "outlasted": False}]})


def failed(folder: Path, name: str, conf: str = "") -> tuple[Item, list[Item]]:
    same = [item for item in captures.items(folder, "failures") if item["name"] == name]
    [item] = [item for item in same if item["conf"] == conf]
    return item, [other for other in same if other["conf"]]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("interleaved", {"name": "capacity"}, "the verdict is fragmentation, not capacity"),
        ("capacity", {"limit_bytes": 5 << 30}, "D is"),
        ("pending-frees", {"again": "refused again"}, "tags are ('spurious',)"),
        ("capacity", {"first": None}, "capacity though every request was served"),
    ],
)
def test_a_verdict_that_is_not_what_happened_is_found(rehearsed: Path, name: str, change: dict[str, Any], says: str):
    item, others = failed(rehearsed, name)
    found = captures.snapshot(rehearsed / item["file"])
    [problem] = captures.failure_problems({**item, **change}, others, found)
    assert problem.startswith(says)


def test_a_cure_that_cures_nothing_is_found(rehearsed: Path):
    item, others = failed(rehearsed, "interleaved")
    found = captures.snapshot(rehearsed / item["file"])
    refused = [{**other, "first": "out of memory"} for other in others]
    problems = captures.failure_problems(item, refused, found)
    assert [problem.partition(":")[0] for problem in problems] == [
        "under expandable_segments",
        "under max_split_size_mb",
    ]


def test_an_operation_that_takes_more_is_found(rehearsed: Path):
    [item] = captures.items(rehearsed, "temporaries")
    [machine] = captures.items(rehearsed, "machine")
    rows = [{**row, "peak": row["peak"] + 4096} for row in item["rows"][:1]]
    unknown = {**item["rows"][1], "op": "new"}
    failed_there = {"op": "failed", "error": "no kernel"}
    told = captures.operation_problems({**item, "rows": [*rows, unknown, failed_there]}, machine)
    assert told.keys() == {rows[0]["op"], "new"}
    assert told["new"] == ["the simulated device lacks it"]
    assert told[rows[0]["op"]][0].startswith("peak: +")


def test_operations_before_the_one_at_which_a_family_failed_are_compared(rehearsed: Path, tmp_path: Path):
    [document] = captures.documents(rehearsed, "temporaries")
    [item] = document["items"]
    workspace = {"name": "workspace", "kind": "workspace", "conf": "", "failed": "no kernel"}
    cut_short = {**item, "rows": item["rows"][:2], "failed": "after 2 operations"}
    with gzip.open(tmp_path / "temporaries.json.gz", "wt") as file:
        json.dump({**document, "items": [cut_short, workspace]}, file)
    [kept] = captures.items(tmp_path, "temporaries")
    [machine] = captures.items(rehearsed, "machine")
    assert list(captures.operation_problems(kept, machine)) == [row["op"] for row in item["rows"][:2]]


def test_training_that_went_otherwise_is_found(rehearsed: Path):
    item = captures.items(rehearsed, "training")[0]
    found = captures.snapshot(rehearsed / item["file"])
    [machine] = captures.items(rehearsed, "machine")
    assert captures.replay_problems({**item, "conf": "max_split_size_mb:64"}, found)[0].startswith("it ran under ''")
    trace = found.traces[0]
    moved = trace.address.copy()
    moved[trace.action == trace.action[0]] += 1 << 30
    assert captures.replay_problems(item, replace(found, traces=(replace(trace, address=moved),)))
    more = copy.deepcopy(item)
    more["stats"]["reserved_bytes.all.peak"] = int(1.04 * more["stats"]["reserved_bytes.all.peak"])
    assert captures.simulation_problems(more, found, machine)[0].startswith("the reserved peak is -3.85 % off")
    less = copy.deepcopy(item)
    less["stats"]["allocated_bytes.all.peak"] = int(0.98 * less["stats"]["allocated_bytes.all.peak"])
    assert captures.simulation_problems(less, found, machine)[0].startswith("the allocated peak is +2.04 % off")
    larger = captures.simulation_problems({**item, "seq_length": 256}, found, machine)
    assert any(problem.startswith("the live peak") for problem in larger)


def test_reasons_count_only_while_they_are_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(REASONS, ("golden", "a"), "a stream that ends by itself")
    assert unexplained("golden", {"a": ["differs"], "b": ["differs"], "c": []}) == {"b": ["differs"]}
    assert unexplained("golden", {"a": []}) == {"a": ["differs no longer"]}
