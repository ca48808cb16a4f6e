"""Programs that know nothing of oomscope, started as they are on a virtual card. Their code is in ``programs``."""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import agreements
from oomscope.config.load import load_preset
from oomscope.probe.job import EntryTarget, HarnessTarget, ProbeJob, ProgramTarget, bundled_job
from oomscope.probe.process import launch
from oomscope.probe.recording.values import assumed_values
from oomscope.probe.recording.values.assumed_values import GRADIENTS_NOTE
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.sites import is_measuring
from tests.forked import probe
from tests.integration.program import commit, new_repo, oomscope

PROGRAMS = Path(__file__).parent / "programs"
SMALL = (PROGRAMS / "small.py").read_text()
MiB, GiB = 1 << 20, 1 << 30


def probed(*words: str, **fields: Any) -> ProbeResult:
    """Return the result of a program of ``programs``; ``words`` are a file and its arguments."""
    target = ProgramTarget(repo=str(PROGRAMS), command=" ".join((sys.executable, *words)))
    return launch.run(ProbeJob(**{"target": target, "backend": "virtual", "iterations": 3, "timeout_s": 120} | fields))


def small(word: str, **fields: Any) -> ProbeResult:
    return probed("small.py", word, **fields)


def stepped(function: str, *, file: str = "entries", **fields: Any) -> ProbeResult:
    """Return the result of an entry in ``programs``, in a forked process: starting a program is not at stake."""
    target = EntryTarget(repo=str(PROGRAMS), entry=f"{file}:{function}")
    return probe(ProbeJob(**{"target": target, "backend": "virtual", "iterations": 3} | fields))


def left_over(token: str) -> list[str]:
    """Return the command lines of processes that have ``token`` in them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if token in line:
            found.append(line)
    return found


def test_a_plain_gpt_as_a_program_and_through_a_harness_gives_the_same_bytes() -> None:
    program = probed("plain_gpt.py")
    harness = HarnessTarget(repo=str(PROGRAMS), harness=str(PROGRAMS / "plain_gpt_harness.py"))
    through = probe(ProbeJob(target=harness, backend="virtual", iterations=3))
    assert (program.outcome, through.outcome) == ("fits", "fits"), (program.failure, through.failure)
    for name in ("requested_bytes", "allocated_bytes", "reserved_bytes"):
        assert getattr(program.peak, name) == getattr(through.peak, name), name
    assert program.peak.phase == through.peak.phase
    assert program.peak.site == through.peak.site
    assert program.peak.site.file == "plain_gpt.py"
    assert sum(program.peak.categories.values()) == program.peak.requested_bytes
    assert {"parameter", "optimizer_state", "activation"} <= set(program.peak.categories)


@pytest.mark.parametrize(
    ("word", "kind", "said"),
    [
        ("on_cpu", "nothing", "the model is on the CPU: 2.00 MiB of parameters there, none on the card"),
        (
            "fails_after_step",
            "exit",
            (
                "the program ended after 1 step (it ended with status 1): ValueError: step two "
                "(it had read values that a virtual card does not compute, at "
            ),
        ),
        ("aborts", "crash", "was ended after 1 step and kept nothing (it was ended by SIGABRT)"),
    ],
)
def test_what_is_no_answer(word: str, kind: str, said: str) -> None:
    result = small(word)
    assert (result.outcome, result.peak) == ("error", None)
    assert result.failure.kind == kind
    assert said in result.failure.message


REST = "what follows them counts as iteration 2 (numbered from 0)"
SEARCH = (
    "the steps measured are the first of Lightning's search for a batch size or learning rate, which goes on to "
    "others: give more --iterations, or turn the search off"
)


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("in_backward", None),
        ("child", None),
        ("workers", None),
        ("hard_exit", f"the program ended by itself after 2 of 3 iterations; {REST}"),
        ("tuned", SEARCH),
        ("inference", "no step of a torch.optim.Optimizer was seen: the program was measured to its end"),
        ("swallows", "the program did not end when asked, and was killed"),
        ("survives", "an allocation failed once; the target continued; it asked for 4.00 GiB, at small.py:20 steps"),
    ],
)
def test_what_is_an_answer(word: str, note: str | None) -> None:
    token = secrets.token_hex(8)
    result = probed("small.py", word, token, limit_bytes=4000 * MiB)
    assert result.outcome == "fits", result.failure
    assert result.notes == (() if note is None else (note,))
    assert result.iterations in (0, 2, 3), "of them, in_backward has many optimizers"
    assert result.files_outside == (("/nowhere/rows.bin",) if word == "workers" else ())
    assert (result.survived is not None) == (word == "survives")
    assert result.survived is None or result.survived.reserved_bytes < 100 * MiB, "of the smaller batch alone"
    assert result.peak.requested_bytes > 2 * MiB
    assert result.peak.site.file == "small.py"
    assert left_over(token) == []


def test_iterations_are_those_of_the_optimizer_that_stepped_first() -> None:
    result = small("gan")
    seldom = "an optimizer steps less often than the first: up to 12 iterations were measured instead of 3"
    assert (result.outcome, result.notes) == ("fits", (seldom,))
    assert {row.iteration for row in result.phases} == {*range(-1, 11)}, "its steps of single layers are one"
    assert (result.iterations, result.unstepped) == (10, 0), "the other one makes its second step in the tenth"
    assert {row.phase for row in result.phases} >= {"init", "forward", "backward", "optimizer"}


def test_the_collector_runs_no_earlier_than_without_a_probe() -> None:
    """A plain run of 40 iterations makes far fewer objects than Python's collector waits for."""
    result = small("cycles", iterations=40)
    assert result.outcome == "fits", result.failure
    assert result.peak.requested_bytes > 38 * 8 * MiB


def test_phases_and_categories_are_known_of_a_torch_that_marks_nothing() -> None:
    marked, unmarked = small("collected"), small("unmarked")
    assert unmarked.outcome == "fits", unmarked.failure
    assert unmarked.phases == marked.phases
    assert unmarked.peak.categories == marked.peak.categories
    assert (unmarked.peak.phase, unmarked.peak.iteration) == (marked.peak.phase, marked.peak.iteration)


def test_demand_and_cure_are_known_of_a_program_that_prints_its_loss() -> None:
    result = small("logs_and_runs_out", limit_bytes=1700 * MiB, allocator_conf="expandable_segments:True")
    assert result.outcome == "oom"
    assert result.oom.requested_bytes == 1024 * MiB
    assert result.oom.site.function == "logs_and_runs_out"
    assert result.oom.message.startswith("CUDA out of memory. Tried to allocate 1024.00 MiB")
    assert result.verdict.kind == "capacity"
    assert sum(row.bytes for row in result.oom.sites) == result.verdict.live_requested_bytes
    assert not [note for note in result.notes if "neither demand nor cure is known" in note]
    assert result.demand_bytes > 1700 * MiB


def test_a_leak_shows_in_three_iterations_though_the_last_one_is_ended_at_its_step() -> None:
    leak = small("keeps_outputs").verdict.leak
    assert leak.bytes_per_iteration == 4 * MiB


def test_a_leak_that_few_iterations_do_not_show_is_found_by_a_longer_run() -> None:
    result = small("leaks_by_cat")
    assert (result.outcome, result.verdict.tags) == ("fits", ("leak",))
    assert result.verdict.leak.bytes_per_iteration == 256 * MiB
    assert "the leak was seen in a run of 9 iterations" in result.notes


def test_a_leak_that_runs_out_of_memory_after_the_iterations_asked_for_is_out_of_memory() -> None:
    result = small("leaks", limit_bytes=int(2.5 * GiB), iterations=3)
    assert (result.outcome, result.oom.iteration, result.oom.requested_bytes) == ("oom", 5, 256 * MiB)
    assert (result.verdict.kind, result.verdict.tags) == ("capacity", ("leak",))
    line = next(number for number, text in enumerate(SMALL.splitlines(), 1) if "history.append(" in text)
    assert (result.verdict.leak.bytes_per_iteration, result.verdict.leak.site.line) == (256 * MiB, line)
    assert 8 * 256 * MiB < result.demand_bytes < 9 * 256 * MiB, "the last iteration ends at its step"
    assert result.peak.categories["kept"] % (256 * MiB) == 0
    assert [note for note in result.notes if note.startswith("kept more tensors after each iteration: history in")]
    assert "fewer iterations fit; a run of 9, made because memory grew, ran out and is reported" in result.notes


def test_a_buffer_that_fills_and_stays_as_large_is_no_leak() -> None:
    result = stepped("keeps_a_window")
    assert (result.outcome, result.verdict.tags, result.iterations) == ("fits", (), 9)
    assert result.peak.categories["kept"] == 6 * 256 * MiB, "the next one beside the last five"
    assert "memory that grew in the first iterations stops growing in a run of 9: it is no leak" in result.notes


def test_a_leak_beside_which_something_else_is_given_up_is_one() -> None:
    result = stepped("leaks_beside_a_buffer")
    assert result.verdict.tags == ("leak",)
    assert result.verdict.leak.bytes_per_iteration == 16 * MiB


def test_a_longer_run_that_depends_on_values_of_the_card_shows_nothing() -> None:
    result = small("clears_by_value")
    assert result.verdict.tags == ("leak",)
    assert "a run of 9 iterations, which separates a leak from a buffer that fills, has no result" in result.notes


def test_a_request_that_the_program_s_own_fraction_refuses_is_not_beyond_the_card() -> None:
    result = stepped("under_a_fraction", limit_bytes=4000 * MiB)
    assert (result.outcome, result.verdict.tags) == ("oom", ("fraction",))
    assert "The memory fraction refused it although enough was free on the device" in result.verdict.headline


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_program_that_sizes_itself_by_the_card_does_so_by_its_limit_in_the_run_that_tells_the_demand(
    conf: str,
) -> None:
    result = stepped("sized_by_the_card", limit_bytes=1000 * MiB, non_torch_bytes=0, allocator_conf=conf)
    assert (result.verdict.kind, result.oom.requested_bytes) == ("capacity", 2200 * MiB)
    assert result.demand_bytes == (500 + 250 + 2200) * MiB


def test_a_request_that_only_its_rounding_makes_too_large_is_judged_as_it_was_asked_for() -> None:
    conf, fields = "roundup_power2_divisions:2", {"limit_bytes": 700 * MiB, "non_torch_bytes": 0}
    result = stepped("rounded_up", allocator_conf=conf, **fields)
    assert (result.oom.requested_bytes, result.verdict.kind) == (520 * MiB, "fragmentation")
    assert result.verdict.cured_by[0] == "roundup_power2_divisions:1", "none at all"


def test_a_program_that_does_not_seed_its_shuffle_does_the_same_in_each_run() -> None:
    result = small("shuffles", iterations=5)
    assert result.outcome == "fits", result.failure
    assert [
        note
        for note in result.notes
        if note.endswith("with large numbers in place of zeros the program requested the same bytes")
    ]


def test_ranks_that_the_program_spawns_are_measured_whole() -> None:
    result = small("spawns", world_size=2)
    assert (result.outcome, result.rank) == ("fits", 1)
    lower, higher = (row.peak.requested_bytes for row in sorted(result.ranks, key=lambda row: row.rank))
    assert 1.5 * lower < higher
    assert result.peak.categories["communication"] >= 2 * MiB, "the buckets of gradients"


def test_frames_of_what_measures_are_in_no_snapshot_and_evidence_tells_its_categories(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pickle"
    result = launch.run(replace(bundled_job(load_preset("gpt-tiny", []).config), snapshot_path=str(kept)))
    assert result.outcome == "fits", result.failure
    snapshot = load_snapshot(kept)
    stacks = [stack for trace in snapshot.traces for stack in trace.stacks]
    assert not [frame for stack in stacks for frame in stack if is_measuring(frame)]
    _, _, agreed = agreements(snapshot)
    assert {name: each.right > 0.95 for name, each in agreed.items()} == {"at the peak": True, "of all": True}


def test_two_iterations_that_grow_say_that_more_are_needed() -> None:
    result = stepped("leaks", iterations=2)
    assert result.verdict.tags == ()
    note = "requested memory grew 256.00 MiB in the second iteration: a leak shows with --iterations 4"
    assert note in result.notes


def test_what_follows_the_only_iteration_is_no_growth() -> None:
    result = small("two_phases")
    assert result.iterations == 1
    assert [note.partition(";")[0] for note in result.notes] == ["the program ended by itself after 1 of 3 iterations"]


def test_a_program_that_gives_up_quietly_ran_out_of_memory_all_the_same() -> None:
    result = small("gives_up", limit_bytes=4000 * MiB, measure_demand=False)
    assert result.outcome == "oom"
    assert result.oom.requested_bytes == 4096 * MiB


def test_a_program_that_never_steps_under_other_values_is_ended_and_the_worse_way_reported() -> None:
    result = small("steps_by_value")
    assert result.outcome == "fits", result.failure
    line = next(number for number, text in enumerate(SMALL.splitlines(), 1) if "if loss.item() == 0:" in text) + 1
    (note,) = result.notes
    assert "and decide what the program does: with the values that were tried, it requests " in note
    assert note.endswith(f" at small.py:{line} steps_by_value)")
    assert result.peak.categories["optimizer_state"] == 2 * result.peak.categories["parameter"]


def test_a_program_whose_own_check_zeros_fail_is_measured_with_other_values() -> None:
    result = small("checks_a_value")
    assert (result.outcome, result.peak.site.function) == ("fits", "checks_a_value"), result.failure
    assert "where they are 0 the program fails (the program ended before its first step" in result.notes[0]


def test_an_index_that_the_host_computed_is_answered() -> None:
    result = stepped("boolean_on_host")
    assert (result.outcome, result.notes) == ("fits", ())


def test_a_size_that_depends_on_values_is_real_once_the_host_computes_them() -> None:
    result = stepped("sized_by_value", compute_values=True)
    assert (result.outcome, result.notes) == ("fits", ()), result.failure
    assert result.peak.requested_bytes == stepped("sized_by_the_host").peak.requested_bytes


CHOICES_NOTE = r"choices \(topk, argmax, multinomial\) at \S*{file}:\d+ count as even, each entry .* need more memory"


def test_routers_of_experts_choose_evenly() -> None:
    routed, even = stepped("experts"), stepped("experts_chosen_on_host")
    saved_by_topk = 2048 * 2 * 8  # its own choices, beside those of the host
    assert even.peak.requested_bytes - routed.peak.requested_bytes == saved_by_topk
    assert routed.notes == even.notes
    assert re.fullmatch(CHOICES_NOTE.format(file="entries.py"), "\n".join(routed.notes))


def test_choices_are_known_under_selective_checkpointing() -> None:
    result = stepped("setup", file="selective")
    assert result.outcome == "fits"
    assert re.fullmatch(CHOICES_NOTE.format(file="selective.py"), "\n".join(result.notes))


def test_a_program_that_switches_anomaly_mode_off_keeps_the_lines_of_backward() -> None:
    peak = small("without_anomaly_mode").peak
    assert (peak.phase, peak.site.file) == ("backward", "small.py")
    assert (peak.categories["kept"], peak.categories["parameter"]) == (8 * MiB, 4 * (2 * 256 * 1024 + 256 + 1024))


def test_training_in_fp16_takes_each_step() -> None:
    result = stepped("fp16")
    assert (result.outcome, result.notes) == ("fits", (GRADIENTS_NOTE,))
    assert "optimizer_state" in result.peak.categories


def test_a_card_that_the_program_s_torch_has_no_kernels_for_is_refused() -> None:
    result = small("train", gpu="v100-32gb")
    assert (result.outcome, result.failure.kind) == ("error", "unfit")
    assert "v100-32gb" in result.failure.message


def test_a_program_that_sets_its_allocator_is_measured_under_that_with_its_phases() -> None:
    result = small("sets_allocator")
    phases = {(row.iteration, row.phase) for row in result.phases}
    assert phases >= {(-1, "init"), *((step, phase) for step in range(3) for phase in ("forward", "backward"))}
    assert phases >= {(0, "optimizer"), (2, "optimizer"), (0, "other")}
    assert result.allocator_conf == "max_split_size_mb:128"
    assert result.notes == (
        "the program itself sets its allocator to max_split_size_mb:128: that is what was measured",
    )


def test_a_program_that_records_itself_and_resets_its_peaks_is_measured_all_the_same(tmp_path: Path) -> None:
    saved = tmp_path / "last.pt"
    result = probed("small.py", "meddles", str(saved))
    assert result.outcome == "fits", result.failure
    assert (result.peak.iteration, result.peak.phase) == (0, "backward")
    assert result.peak.allocated_bytes >= result.peak.requested_bytes
    assert result.peak.reserved_bytes > 200 * MiB
    assert not result.truncated
    assert "_record_memory_history was not called" in result.notes[0]
    assert f"the program saved {saved}: a virtual card computes no values to save" in result.notes


def test_a_value_on_which_nothing_depends_is_noted_by_a_python_without_numpy_and_oomscope(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    python = tmp_path / "other" / "bin" / "python"
    (packages,) = (tmp_path / "other").glob("lib/python*/site-packages")
    torch = importlib.util.find_spec("torch").origin
    (packages / "others.pth").write_text(f"{Path(torch).parents[1]}\n")  # its own .pth files are not followed
    (packages / "numpy.py").write_text("raise ModuleNotFoundError('No module named numpy', name='numpy')\n")
    asked = subprocess.run([python, "-c", "import oomscope"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "No module named 'oomscope'" in asked.stderr
    target = ProgramTarget(repo=str(PROGRAMS), command=f"{python} -W ignore small.py prints_loss")
    result = launch.run(ProbeJob(target=target, backend="virtual", iterations=3, timeout_s=120))
    line = next(number for number, text in enumerate(SMALL.splitlines(), 1) if 'print("loss", loss.item()' in text)
    assert result.outcome == "fits", result.failure
    assert result.peak.site.file == "small.py"
    (note,) = result.notes
    assert note.startswith(f"values that a virtual card does not compute were read 2 times (at small.py:{line});")
    assert note.endswith("with large numbers in place of zeros the program requested the same bytes")


def test_the_command_line_keeps_what_the_program_printed() -> None:
    printing = f"echo the batch is large; export PYTHONPATH=.; exec {sys.executable} small.py train"
    words = ("probe", "--backend", "virtual", "--repo", PROGRAMS, "--iterations", "1")
    done = oomscope(*words, "--json", "--quiet", "--", "sh", "-c", printing)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["backend"], document["peak"]["site"]["file"]) == ("virtual", "small.py")
    log = Path(done.stderr.partition("What the program printed: ")[2].strip())
    assert log.read_text() == "the batch is large\n", "it was ended in its first step"
    log.unlink()


def test_a_gradient_in_the_loss_is_no_microbatch_and_its_graph_has_lines() -> None:
    peak = stepped("gradient_penalty").peak
    assert (peak.phase, peak.microbatch, "unknown" in peak.categories) == ("backward", 0, False)
    assert {each.site.file for each in peak.sites} == {"entries.py", "small.py"}


def test_guards_against_infinities_skip_no_step() -> None:
    result = stepped("guards", iterations=2)
    assert result.outcome == "fits", result.failure
    assert assumed_values.NOTE in result.notes
    assert "optimizer_state" in result.peak.categories


def test_a_captured_step_is_measured_whole(tmp_path: Path) -> None:
    kept = tmp_path / "captured.pickle"
    result = probed("captured.py", iterations=3, snapshot_path=str(kept))
    assert result.outcome == "fits", result.failure
    assert {"forward", "backward", "optimizer"} <= {phase.phase for phase in result.phases}
    (explained,) = explain_path(kept).found.devices
    assert [pool.segments > 0 for pool in explained.pools] == [True]


def test_a_step_that_only_makes_states_for_a_checkpoint_is_no_iteration() -> None:
    result = small("resumes", iterations=1)
    assert (result.iterations, result.peak.phase) == (1, "backward")


def test_the_history_of_lbfgs_is_noted() -> None:
    assert [note for note in stepped("quasi_newton").notes if "50 pairs of vectors, 200.49 MiB" in note]


def test_of_several_cards_the_one_that_runs_out_of_memory_is_reported() -> None:
    result = small("two_cards", limit_bytes=int(1.8 * GiB), devices=2)
    assert (result.outcome, result.verdict.kind, result.oom.requested_bytes) == ("oom", "capacity", 450 * MiB)
    assert 450 * MiB <= result.peak.requested_bytes < 460 * MiB
    assert 900 * MiB <= result.demand_bytes < 950 * MiB, "of the same card"
    (note,) = (note for note in result.notes if "cards were used" in note)
    assert note.startswith(
        "2 cards were used, and this is cuda:0, which ran out of memory: at most 452.00 MiB of cuda:0"
    )


def test_what_another_process_holds_of_the_card_is_not_free() -> None:
    """The parent holds 6 of 10 GiB and asks for no more; its child is refused 5 GiB, and would have them alone."""
    result = small("two_processes", limit_bytes=10 * GiB, measure_demand=False)
    assert result.outcome == "oom"
    assert result.other_process_bytes == 6 * GiB
    assert "foreign" in result.verdict.tags


def test_the_command_line_of_a_program_that_fails(tmp_path: Path) -> None:
    words = ("probe", "--backend", "virtual", "--repo", PROGRAMS, "--quiet")
    done = oomscope(*words, "--", sys.executable, "-c", "print('as told'); raise SystemExit(9)")
    assert done.returncode == 6
    assert "the program failed before it imported torch (it ended with status 9)" in done.stdout
    assert "correct the error that it printed last; if torch is missing, start it" in " ".join(done.stdout.split())
    assert "What the program printed last:\n  as told\nWhat the program printed: " in done.stderr
    Path(done.stderr.partition("What the program printed: ")[2].strip()).unlink()


TRAIN = """\
import torch
from torch import nn

WIDTH = 512

net = nn.Sequential(nn.Linear(256, WIDTH), nn.GELU(), nn.Linear(WIDTH, 256)).to("cuda")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
outputs = []
for step in range(1000):
    batch = torch.randn(4096, 256, device="cuda")
    output = net(batch)
    loss = (output - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WIDER, KEPT = "WIDTH = 2048\n", "output = net(batch)\n    outputs.append(output)\n"
CHANGES = (
    ("train a small network", "", ""),
    ("widen the hidden layer", "WIDTH = 512\n", WIDER),
    ("average the output over time", "output = net(batch)\n", KEPT),
    ("lower the learning rate", "1e-3", "3e-4"),
)
"""Four commits of a flat script, by subject, what they replace and with what: one widens a layer, one keeps outputs."""


def test_a_leak_and_an_earlier_step_of_a_flat_script_are_found_with_their_lines(tmp_path: Path) -> None:
    repo, text, commits, lines = new_repo(tmp_path / "repo"), TRAIN, {}, {}
    for subject, before, after in CHANGES:
        assert before in text
        text = text.replace(before, after, 1)
        commits[subject] = commit(repo, subject, {"train.py": text})
        lines[commits[subject]] = 1 + text.splitlines().index("    output = net(batch)")
    words = ("--command", f"{sys.executable} train.py", "--backend", "virtual", "--iterations", "9", "--steps")
    options = ("--bad", "requested>165MiB", "--repo", repo, "--state", tmp_path / "state", "--json", "--quiet")
    done = oomscope("bisect", f"{commits['train a small network']}..", *words, *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    widened, averaged = commits["widen the hidden layer"], commits["average the output over time"]
    assert document["culprit"]["commit"] == averaged
    grown = {step["commit"]: step["dominant"] for step in document["steps"] if step["delta"]["requested_bytes"] > MiB}
    places = {each: (row["site"]["file"], row["site"]["line"], row["category"]) for each, row in grown.items()}
    assert places == {
        widened: ("train.py", lines[widened], "activation"),
        averaged: ("train.py", lines[averaged], "kept"),
    }
    assert f"--command '{sys.executable} train.py'" in document["last_good"]["commands"][-1]
