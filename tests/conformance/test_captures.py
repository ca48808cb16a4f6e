"""What was captured on a real card holds without one; and the comparisons find what is made wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance import card_captures as captures
from tests.conformance.card_captures import Item
from tests.gpu.virtual_captures import TRACES, capture, card_of

FOLDER = Path(__file__).parents[2] / "fixtures" / "snapshots" / "cuda"
_OTHERS = "plays beside it held the card's memory: the driver refused while this one was far below its own limit"
_EVENTS = (
    "an event on an idle stream: the card needs some microseconds for it, and the next request asks sooner; the "
    "emulator has it done at once"
)
_VALUES = "the size of the result depends on values, which the virtual card does not compute"
REASONS: dict[tuple[str, str], str] = {
    **{
        ("golden", name): _OTHERS
        for name in (
            *(
                "train-7b-ish/01 expandable_segments:True",
                "train-7b-ish/02",
                "train-7b-ish/03 expandable_segments:True",
            ),
            *("train-ckpt/00", "train-ckpt/01 expandable_segments:True", "train-ckpt/02"),
        )
    },
    **{
        ("golden", name): _EVENTS
        for name in (
            *("streams-a/00@2.12.1", "streams-a/01 expandable_segments:True"),
            *("fsdp-a/00", "fsdp-a/01 expandable_segments:True"),
        )
    },
    **{("operations", name): _VALUES for name in ("nonzero", "masked_select", "one_hot")},
}
"""By comparison and item: why the two differ; an item named here must differ."""


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return all that was captured on the real card, captured on a virtual one like it, under the same torch."""
    [machine] = captured("machine")
    wanted, ours = (version.partition("+")[0] for version in (machine["torch"], torch.__version__))
    if wanted != ours:
        pytest.skip(f"captured with torch {wanted}, and this is {ours} (make test-torch VERSION={wanted} installs it)")
    words = ["--part", "failures", "--part", "training", "--part", "temporaries", "--at-once", "2"]
    return capture(tmp_path_factory.mktemp("virtual"), words, card=card_of(machine))


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


def test_the_virtual_card_serves_the_requests_that_the_card_served(virtual: Path):
    problems = {
        captures.titled(item): captures.outcome_problems(item, mine)
        for item, mine in captures.pairs(FOLDER, virtual, "failures")
    }
    assert unexplained("outcomes", problems) == {}


def test_the_virtual_card_needs_what_the_card_needed(virtual: Path):
    snapshots = {item["file"] for item in with_snapshots("training")}
    problems = {
        captures.titled(item): trained(FOLDER, item, virtual, mine)
        for item, mine in captures.pairs(FOLDER, virtual, "training")
        if item["file"] in snapshots
    }
    assert unexplained("training", problems) == {}


def test_operations_take_on_the_virtual_card_what_they_took(virtual: Path):
    pairs = [pair for pair in captures.pairs(FOLDER, virtual, "temporaries") if pair[0]["kind"] == "family"]
    assert pairs
    problems = {op: told for pair in pairs for op, told in captures.operation_problems(*pair).items()}
    assert unexplained("operations", problems) == {}


def test_the_workspace_of_a_sum_follows_from_the_registers_of_its_kernel(virtual: Path):
    rows = [
        {row["op"]: [size for action, size in row["events"] if action == "alloc"] for row in item["rows"]}
        for pair in captures.pairs(FOLDER, virtual, "temporaries")
        for item in pair
        if any(row["op"] == "nonzero" for row in item.get("rows", ()))
    ]
    real, mine = (row["nonzero"][:2] for row in rows)
    assert real == mine == [4, 21503]


# ---- the comparisons themselves, on captures of the virtual card ---------------------------------------------------


def failures_of(folder: Path, items: Iterator[Item] | list[Item]) -> dict[str, list[str]]:
    every = captures.items(folder, "failures")
    problems = {}
    for item in items:
        others = [other for other in every if other["name"] == item["name"] and other["conf"] and not item["conf"]]
        found = captures.snapshot(folder / item["file"])
        problems[captures.titled(item)] = captures.failure_problems(item, others, found)
    return problems


def trained(real: Path, item: Item, virtual: Path, mine: Item) -> list[str]:
    traces = (captures.snapshot(real / item["file"]), captures.snapshot(virtual / mine["file"]))
    return captures.training_problems(item, traces[0], mine, traces[1])


def test_the_emulator_plays_recorded_traces_as_torch_does_on_the_virtual_card(virtual_captures: Path):
    golden = captures.items(virtual_captures, "golden")
    assert {item["name"] for item in golden} == {*TRACES}
    assert {item["name"]: captures.golden_differences(item) for item in golden} == {item["name"]: [] for item in golden}


def test_failures_on_the_virtual_card_are_judged_as_they_were(virtual_captures: Path):
    problems = failures_of(virtual_captures, captures.items(virtual_captures, "failures"))
    assert len(problems) == 9
    assert not any(problems.values())


def test_captures_are_like_themselves(virtual_captures: Path):
    for item, mine in captures.pairs(virtual_captures, virtual_captures, "training"):
        assert captures.replay_problems(item, captures.snapshot(virtual_captures / item["file"])) == []
        assert trained(virtual_captures, item, virtual_captures, mine) == []
    for item, mine in captures.pairs(virtual_captures, virtual_captures, "failures"):
        assert captures.outcome_problems(item, mine) == []
    for item, mine in captures.pairs(virtual_captures, virtual_captures, "temporaries"):
        told = captures.operation_problems(item, mine)
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
def test_what_the_card_did_otherwise_is_found(virtual_captures: Path, change: Callable[[Item], None], field: str):
    item = next(item for item in captures.items(virtual_captures, "golden") if item["segments"])
    change(item)
    assert [text.partition(":")[0] for text in captures.golden_differences(item)] == [field]


def failed(folder: Path, name: str, conf: str = "") -> tuple[Item, list[Item]]:
    same = [item for item in captures.items(folder, "failures") if item["name"] == name]
    [item] = [item for item in same if item["conf"] == conf]
    return item, [other for other in same if other["conf"]]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("interleaved", {"name": "capacity"}, "the verdict is fragmentation, not capacity"),
        ("capacity", {"limit_bytes": 5 << 30}, "D is"),
        ("pending-frees", {"again": "refused again"}, "tags are ('fraction', 'spurious')"),
        ("capacity", {"first": None}, "capacity though every request was served"),
    ],
)
def test_a_verdict_that_is_not_what_happened_is_found(
    virtual_captures: Path, name: str, change: dict[str, Any], says: str
):
    item, others = failed(virtual_captures, name)
    found = captures.snapshot(virtual_captures / item["file"])
    [problem] = captures.failure_problems({**item, **change}, others, found)
    assert problem.startswith(says)


def test_reasons_count_only_while_they_are_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(REASONS, ("golden", "a"), "a stream that ends by itself")
    assert unexplained("golden", {"a": ["differs"], "b": ["differs"], "c": []}) == {"b": ["differs"]}
    assert unexplained("golden", {"a": []}) == {"a": ["differs no longer"]}
