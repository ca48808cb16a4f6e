"""The report on a snapshot: the answer first, every number explained, nothing broken at any width."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from oomscope.report.commands.explain import explain_report
from oomscope.report.commands.explain_sentences import advice, setting_advice
from oomscope.report.exports.dataframes import tables_of
from oomscope.report.exports.summary import summary_of
from oomscope.report.html.pages import explain_page
from oomscope.snapshot.explain.analysis import analyse
from oomscope.snapshot.explain.composition import CategoryBytes
from oomscope.snapshot.explain.drawing import draw
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action, Category, Frame, Moment, Snapshot
from oomscope.units import GiB, MiB
from tests.trace_builder import TraceBuilder
from tests.unit.report.printed import folded, on_terminal, printed
from tests.unit.snapshot.explained import explain
from tests.unit.snapshot.machine import Machine

FIXTURES = Path(__file__).parents[3] / "fixtures" / "snapshots"
OOM = FIXTURES / "torch-2.13-oom.pickle.zst"
FILES = sorted(path for path in FIXTURES.iterdir() if path.suffix in {".pickle", ".gz", ".zst", ".json"})


def rendered(found, **how) -> str:
    return printed(explain_report(found, **how))


def explained(path: Path, **asked):
    return explain(load_snapshot(path), file=path.name, **asked)


@cache
def fitting() -> DeviceExplanation:
    """A recording on a card on which it fits, and would fit better under another setting."""
    return explained(FIXTURES / "tinytrain-v0.2.pickle.gz", limit=5632 * MiB).devices[0]


def recorded(machine: Machine, **facts) -> Snapshot:
    return Snapshot(segments=machine.segments(), traces=(machine.trace(),), **facts)


def test_the_answer_comes_first_and_in_eight_lines() -> None:
    lines = rendered(explained(OOM)).splitlines()
    assert lines[0] == "torch-2.13-oom.pickle.zst · device 0 · 98 events · default allocator settings"
    assert lines[1] == "OUT OF MEMORY asking for 9.00 MiB in forward, at …/user/project/train.py:32 forward"
    assert lines[2].startswith("Verdict: fragmentation")
    short = printed(explain_report(explained(OOM), full=False), 200).splitlines()
    assert len([line for line in short if not line.startswith("note:")]) <= 8
    assert short[1] == lines[1]
    assert any(line.startswith("Largest at failure") for line in short)
    assert any(line.startswith("What to do") for line in short)


def failed_holding(confidence: str = "high", iterations: int = 1) -> DeviceExplanation:
    """Return a failure by capacity that holds 20 GiB of parameters and 4 GiB of activations of 23 GiB."""
    device = explained(OOM).devices[0]
    sizes = {"parameter": 20 * GiB, "activation": 4 * GiB}
    rows = tuple(
        CategoryBytes(category=name, bytes=size, count=1, confidence=confidence, rules={})
        for name, size in sizes.items()
    )
    return replace(
        device,
        available_bytes=23 * GiB,
        failure=replace(device.failure, bytes=24 * GiB, categories=rows),
        iterations=replace(device.iterations, count=iterations),
        verdict=replace(
            device.verdict, kind="capacity", tags=(), live_requested_bytes=24 * GiB, requested_bytes=GiB, leak=None
        ),
    )


def test_what_to_reduce_is_named_after_a_whole_iteration_where_categories_are_sure_enough() -> None:
    assert advice(failed_holding()) == (
        "free at least 2.00 GiB of the 5.00 GiB of activations and the request that failed: smaller batch, shorter "
        "sequences, recompute, offload; or of the 20.00 GiB of parameters: sharding, offload"
    )
    generic = "peak demand exceeds the card; reduce live memory (smaller batch, recompute, offload, parallelism)"
    assert advice(failed_holding(iterations=0)) == advice(failed_holding("low")) == generic
    report = printed(explain_report(Explanation(file="x.pickle", devices=(failed_holding(),))), 300)
    assert "What to do: free at least 2.00 GiB of the 5.00 GiB" in report


def filling_a_cache(mib: int) -> str:
    """Return the short report on ten iterations, each of which puts a larger mask of ``mib`` and more into a cache."""
    machine, batch = Machine(4 * GiB), 0
    for number in range(10):
        machine.moment = Moment("forward", number, 0)
        if batch:
            machine.free(batch)
        batch = machine.alloc((60 if number % 3 else 200) * MiB, line=9, category=Category.UNKNOWN)
        machine.alloc(mib * MiB + number * MiB // 4, line=31, category=Category.UNKNOWN)
    machine.moment = Moment("forward", 10, 0)
    machine.alloc(MiB, line=9, category=Category.UNKNOWN)
    return printed(explain_report(explain(recorded(machine), file="masks.pickle"), full=False), 300)


def test_a_line_that_grows_is_named_though_it_may_not_be_a_leak() -> None:
    text = filling_a_cache(20)
    assert re.search(r"Grows +\S+ MiB an iteration from \S+:31 .*iterations: a leak, or a cache that is not full", text)
    assert len([line for line in text.splitlines() if not line.startswith("note:")]) <= 8
    assert "Grows" not in filling_a_cache(0)


@pytest.mark.parametrize(
    ("version", "source", "variable"),
    [
        ("2.9", "given", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.10", "given", "PYTORCH_ALLOC_CONF"),
        ("2.11", "found", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.12", "found", "PYTORCH_ALLOC_CONF"),
    ],
)
def test_a_cure_is_named_as_the_torch_of_the_recording_reads_it(version: str, source: str, variable: str) -> None:
    device = replace(fitting(), torch_version=version, version_source=source)
    assert setting_advice(device).startswith(f"set {variable}=expandable_segments:True")


def test_the_cure_of_a_failure_on_a_smaller_card_is_named_so_in_text_and_page() -> None:
    """And what was recorded is told from what would be."""
    snapshot = load_snapshot(FIXTURES / "tinytrain-v0.2.pickle.gz")
    analyses = analyse(snapshot, file="a.pickle", limit=4800 * MiB, torch_version="2.6")
    found = explanation_of(snapshot, analyses, file="a.pickle")
    assert found.devices[0].verdict.cured_by
    for text in (rendered(found), explain_page(found, [draw(each) for each in analyses])):
        assert "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the same" in text
        assert "set PYTORCH_ALLOC_CONF" not in text
    text = rendered(found)
    assert "WOULD RUN OUT OF MEMORY on this card" in text
    assert "Peak        4.65 GiB requested as recorded in backward" in text
    assert "Reserved    5.36 GiB at the peak as recorded," in text
    assert "as recorded" not in rendered(explained(OOM)).split("Allocator settings")[0]


def test_the_sentence_names_the_bytes_that_it_does_not_explain() -> None:
    [device] = explained(OOM).devices
    assert "17.50 MiB were free but unusable. It fails" in device.verdict.headline
    assert sum(gap.bytes for gap in device.verdict.gaps[2:]) == pytest.approx(511.32 * 1024, rel=1e-4)


def test_without_a_card_settings_are_compared_on_one_that_refuses_nothing() -> None:
    served = Machine(GiB)
    served.alloc(60 * MiB)
    text = rendered(explain(recorded(served), file="snap.pickle"))
    assert "on a card that refuses nothing" in text
    assert re.search(r"as recorded +passes +60\.00 MiB +0 B", text)


def test_a_setting_under_which_the_job_fails_is_not_advised() -> None:
    device = fitting()
    assert setting_advice(device) is not None
    recorded, better = device.verdict.tried
    for fixes in ((recorded, replace(better, survives=False)), (replace(recorded, survives=False), better)):
        assert setting_advice(replace(device, verdict=replace(device.verdict, tried=fixes))) is None


def test_a_flat_timeline_is_described_in_words() -> None:
    machine = Machine(GiB)
    older = machine.alloc(900 * MiB)
    machine.builder = TraceBuilder()
    machine.free(machine.alloc(20 * MiB))
    machine.alloc(2 * MiB)
    text = rendered(explain(recorded(machine), file="snap.pickle"))
    assert "flat: every part of it reaches 900.00 MiB to 920.00 MiB requested" in text
    machine.free(older)
    assert "flat" not in rendered(explain(recorded(machine), file="snap.pickle"))


def test_one_failure_has_one_line() -> None:
    machine = Machine(100 * MiB)
    machine.alloc(60 * MiB)
    machine.alloc(60 * MiB, stack=(Frame("/home/me/train.py", 12, "backward"),))
    trace = machine.trace()
    stacks = (*trace.stacks, (Frame("/home/me/model.py", 9, "forward"),))
    forward = np.where(trace.action == Action.OOM, len(stacks) - 1, 0).astype(np.int32)
    traces = (replace(trace, stacks=stacks, forward_stack_id=forward),)
    text = rendered(explain(Snapshot(segments=machine.segments(), traces=traces), file="snap.pickle"))
    assert "OUT OF MEMORY asking for 60.00 MiB in forward of iteration 0, at …/home/me/model.py:9 forward" in text


def test_without_a_failure_the_first_line_says_so() -> None:
    lines = rendered(explained(FIXTURES / "torch-2.0.pickle")).splitlines()
    assert lines[1] == "NO FAILED ALLOCATION, 7.25 MiB requested at most"
    assert lines[2] == "768.00 KiB of 8.00 MiB reserved are overhead at the peak"


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (
            80 * MiB,
            "NO FAILED ALLOCATION, 60.00 MiB requested and 60.00 MiB reserved at most, 20.00 MiB to spare of 80",
        ),
        (50 * MiB, "PASSES on this card only by emptying its cache, once; 40.00 MiB requested and 40.00 MiB reserved"),
    ],
)
def test_the_first_line_says_what_a_card_has_left(total: int, said: str) -> None:
    machine = Machine(GiB)
    if total == 80 * MiB:
        machine.alloc(60 * MiB)
    else:
        machine.free(machine.alloc(30 * MiB))
        machine.alloc(40 * MiB)
    found = explain(recorded(machine), file="snap.pickle", limit=total)
    lines = on_terminal(explain_report(found, full=False), 200)
    assert lines[1].startswith(said)
    left = {80 * MiB: 20 * MiB, 50 * MiB: 10 * MiB}[total]
    assert summary_of(found)["margin_bytes"] == left
    assert summary_of(found)["answer"] == lines[1]


@pytest.mark.parametrize(
    ("card", "said"),
    [
        (None, "if the run failed on a card of this size, find out with nvidia-smi what else held 36.00 MiB of it"),
        (100 * MiB, "the run failed on a card of this size: find out with nvidia-smi what else held 36.00 MiB of it"),
        (64 * MiB, None),
    ],
)
def test_what_else_held_memory_is_asked_of_the_card_of_the_recording_alone(card: int | None, said: str | None) -> None:
    [device] = explained(OOM, limit=100 * MiB).devices
    assert device.served is not None
    told = setting_advice(replace(device, served=device.served._replace(card_bytes=card)))
    assert told is None if said is None else (told or "").startswith(said)


def test_a_file_of_segments_only_claims_no_peak() -> None:
    text = rendered(explained(FIXTURES / "torch-2.0-segments-only.pickle"))
    assert "IN USE when the snapshot was written: 4.50 MiB" in text
    assert "peak" not in text.replace("peak and end", "")
    assert "note: the file records no allocation" in text


def test_all_devices_of_a_file_are_shown_unless_one_is_asked_for() -> None:
    path = FIXTURES / "torch-2.1-two-devices.pickle"
    assert rendered(explained(path)).count("· device ") == 2
    assert rendered(explained(path, device=1)).count("· device ") == 1


def test_of_several_devices_the_one_that_failed_comes_first() -> None:
    healthy, failing = Machine(GiB), Machine(100 * MiB)
    healthy.alloc(60 * MiB)
    failing.alloc(60 * MiB)
    failing.alloc(60 * MiB)
    traces = (healthy.trace(), replace(failing.trace(), device=1))
    segments = (*healthy.segments(), *(replace(segment, device=1) for segment in failing.segments()))
    found = explain(Snapshot(segments=segments, traces=traces), file="snap.pickle")
    for full in (True, False):
        text = rendered(found, full=full)
        assert text.startswith("OUT OF MEMORY on 1 device of 2: 1\n")
        assert text.index("· device 1 ·") < text.index("· device 0 ·")
    assert rendered(found).index("Device 1\n") < rendered(found).index("Device 0\n")
    healthy_ones = replace(found, devices=(found.devices[0], replace(found.devices[0], index=2)))
    assert rendered(healthy_ones, full=False).startswith("NO FAILED ALLOCATION on any of 2 devices\n")


def test_iterations_are_counted_with_where_they_are_known_from() -> None:
    found = explained(FIXTURES / "tinytrain-v0.2.pickle.gz")
    assert re.search(r"Iterations +2 whole iterations, by annotations \(high confidence\)", rendered(found))
    told = replace(found.devices[0].iterations, count=1, confidence="certain")
    certain = replace(found, devices=(replace(found.devices[0], iterations=told),))
    assert re.search(r"Iterations +1 whole iteration, from the recording", rendered(certain))


def test_names_out_of_a_snapshot_forge_no_line_and_are_cut() -> None:
    machine = Machine(100 * MiB)
    machine.alloc(60 * MiB, stack=(Frame("/home/me/a\nVerdict: all is well\n.py", 12, "f\nOUT OF\tMEMORY"),))
    machine.alloc(60 * MiB, stack=(Frame("/home/me/train.py", 12, "g" * 200_000),))
    for full in (True, False):
        text = rendered(explain(recorded(machine), file="snap.pickle"), full=full)
        assert r"a\nVerdict: all is well\n.py:12 f\nOUT OF\tMEMORY" in text
        assert not any(line.strip().startswith(("Verdict: all", "OUT OF\t")) for line in text.splitlines())
        assert len(text) < 8_000


def test_cut_tables_still_sum() -> None:
    [device] = explained(OOM).devices
    text = folded(explain_report(explained(OOM), top=1))
    assert (
        f"{len({(row.site, row.category) for row in device.failure.sites}) - 1} further lines 46.50 MiB 15 all" in text
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_line_is_wider_than_the_terminal(path: Path) -> None:
    report = list(explain_report(explained(path)))
    for width in (60, 120):
        assert max(map(len, on_terminal(report, width))) <= width


def test_a_folder_shows_its_ranks_and_explains_the_worst() -> None:
    found = explain_path(FIXTURES / "ranks").found
    text = rendered(found)
    assert "OUT OF MEMORY on 1 rank of 4: 3" in text
    assert "Where ranks differ, by category, each at its own peak" in text
    assert "The worst rank, 3\n" in text
    assert text.count("· device ") == 1
    tables = tables_of(found)
    assert tables["ranks"]["rank"].tolist() == [3, 0, 1, 2]
    assert tables["ranks"].failed_bytes.notna().tolist() == [True, False, False, False]


def test_tables_have_the_sums_of_the_report() -> None:
    found = explained(FIXTURES / "torch-2.1-two-devices.pickle")
    tables = tables_of(found)
    for device in found.devices:
        for name in ("categories", "sites", "modules"):
            table = tables[name]
            assert table.loc[table.device == device.index, "bytes"].sum() == device.peak.requested_bytes
            assert set(table.moment) == {"peak"}
    assert tables["tried"].margin_bytes.isna().all(), "the card is unknown"
    failed = explained(OOM)
    tables, [device] = tables_of(failed), failed.devices
    for name in ("categories", "sites", "modules"):
        assert set(tables[name].moment) == {"failure"}
        assert tables[name]["bytes"].sum() == device.verdict.live_requested_bytes < device.peak.requested_bytes
    ended = tables_of(explained(FIXTURES / "torch-2.0-segments-only.pickle"))
    assert set(ended["sites"].moment) == {"end"}


def test_a_file_without_devices_says_so_in_words(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text("[]")
    assert rendered(explained(path)).strip() == "empty.json: nothing was allocated; was CUDA used in this process?"
    assert "was CUDA used in this process?" in explain_page(explained(path), ())


def test_failures_that_the_program_survived_are_counted_and_do_not_head_the_report() -> None:
    machine = Machine(150 * MiB)
    for size in (200, 180, 100):
        machine.alloc(size * MiB)
    text = rendered(explain(recorded(machine), file="caught.pickle"))
    survived = "SURVIVED 2 failed allocations, 100.00 MiB requested and 100.00 MiB reserved at most"
    assert text.splitlines()[1] == f"{survived}, 50.00 MiB to spare of 150.00 MiB"
    assert "note: 2 allocations failed, the last one of 180.00 MiB at event 1; the program survived it" in text
    assert "Live at the peak, by category" in text
