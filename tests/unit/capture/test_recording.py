"""What is written, when, and that the program never notices: on an allocator of paper."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

import oomscope
from oomscope.errors import InputError, MachineUnfitError
from oomscope.snapshot.provenance import Card, Refused
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action
from oomscope.units import GiB

LAZY_CALL, IS_INITIALIZED = torch.cuda._lazy_call, torch.cuda.is_initialized


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def test_a_snapshot_is_written_at_the_end(allocator, capsys) -> None:
    allocator.initialise()
    with oomscope.record() as recording:
        allocator.alloc()
        assert recording.is_active
    assert files() == ["snap-0.pickle"]
    assert allocator.log[0].startswith("record all {'context': 'alloc', 'stacks': 'python', 'max_entries': 1000000")
    assert allocator.log[1] == "stop"
    assert not recording.is_active
    told = load_snapshot("snap-0.pickle").provenance
    assert (told.reason, told.rank, told.max_entries, told.stacks) == ("end", -1, 1_000_000, "python")
    assert told.cards == (
        Card(index=0, name="Paper 80GB", total_bytes=80 * GiB, free_bytes=2 * GiB, memory_fraction=0.5),
    )
    said = capsys.readouterr().err
    assert said.startswith("oomscope: wrote ")
    assert "snap-0.pickle: 1 events (0 % of the ring)" in said


def test_a_failure_is_written_where_it_happens_and_passes_through(allocator) -> None:
    def train() -> None:
        allocator.alloc()
        try:
            allocator.fail()
        finally:
            allocator.event("free_requested", size=GiB, addr=0x1000)  # what unwinding does

    allocator.initialise()
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"), oomscope.record():
        train()
    assert files() == ["snap-0.oom.pickle"], "the end would tell the same failure again"
    snapshot = load_snapshot("snap-0.oom.pickle")
    assert snapshot.traces[0].action.tolist() == [Action.ALLOC, Action.OOM]
    assert snapshot.provenance.refused == Refused(device=0, requested_bytes=3 * GiB, free_bytes=2 * GiB)
    assert allocator.log[-1] == "stop"


def test_of_several_failures_the_first_is_kept_and_the_end_reports_the_last(allocator) -> None:
    @oomscope.record()
    def train() -> None:
        for size in (1, 2):
            with contextlib.suppress(torch.OutOfMemoryError):
                allocator.fail(size)
        allocator.fail(3)

    allocator.initialise()
    with pytest.raises(torch.OutOfMemoryError):
        train()
    assert files() == ["snap-0.oom.pickle", "snap-0.pickle"]
    assert load_snapshot("snap-0.oom.pickle").traces[0].size.tolist() == [1]
    last = load_snapshot("snap-0.pickle")
    assert last.traces[0].size.tolist() == [1, 2, 3]
    assert last.provenance.reason == "exception"


@pytest.mark.parametrize("broken", [RuntimeError("low_pc_ <= addr"), MemoryError(), OSError(28, "No space left")])
def test_a_snapshot_that_fails_never_takes_the_place_of_the_failure(allocator, capsys, broken) -> None:
    allocator.initialise()
    allocator.broken = broken
    with pytest.raises(torch.OutOfMemoryError), oomscope.record():
        allocator.fail()
    assert files() == []
    assert capsys.readouterr().err.count("warning: no snapshot was written") == 2


def test_a_program_that_never_uses_cuda_leaves_nothing(allocator, capsys) -> None:
    with oomscope.record():
        pass
    allocator.initialise()
    assert (files(), allocator.log) == ([], [])
    assert "did not use CUDA" in capsys.readouterr().err


def test_without_cuda_there_is_a_line_and_nothing_else(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with oomscope.record() as recording:
        recording.step()
        assert recording.dump() is None
    assert capsys.readouterr().err == "oomscope: nothing is recorded: torch finds no CUDA device\n"
    with pytest.raises(MachineUnfitError, match="no CUDA device"), oomscope.record(strict=True):
        pass


def test_without_a_torch_that_can_be_imported_one_line_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with oomscope.record() as recording:
        assert not recording.is_active
    said = capsys.readouterr().err
    assert said.startswith("oomscope: nothing is recorded: torch cannot be imported (")
    assert said.endswith("; without a GPU, measure with oomscope probe\n")
    with pytest.raises(MachineUnfitError, match="torch cannot be imported"), oomscope.record(strict=True):
        pass


def test_a_probe_is_not_disturbed(allocator, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OOMSCOPE_PROBE", "room")
    allocator.initialise()
    with oomscope.record():
        pass
    assert (files(), allocator.log) == ([], [])
    assert "oomscope probe already records this process" in capsys.readouterr().err


def test_a_program_that_records_itself_keeps_its_history(allocator) -> None:
    allocator.initialise()
    allocator.recording = True
    with oomscope.record():
        pass
    assert allocator.log == []
    assert load_snapshot("snap-0.pickle").provenance.max_entries == -1


def test_nothing_is_written_over_unless_forced(allocator) -> None:
    allocator.initialise()
    for size in (1, 2):
        with oomscope.record():
            allocator.alloc(size)
    assert files() == ["snap-0.2.pickle", "snap-0.pickle"]
    assert len(load_snapshot("snap-0.pickle").traces[0]) == 1
    with oomscope.record(force=True):
        pass
    assert len(load_snapshot("snap-0.pickle").traces[0]) == 2
    assert files() == ["snap-0.2.pickle", "snap-0.pickle"]


def test_a_program_that_changes_its_folder_finds_its_snapshot_where_it_was(allocator, tmp_path, monkeypatch) -> None:
    allocator.initialise()
    (tmp_path / "{odd} folder").mkdir()
    monkeypatch.chdir(tmp_path / "{odd} folder")
    with oomscope.record():
        monkeypatch.chdir(tmp_path)
    assert (tmp_path / "{odd} folder" / "snap-0.pickle").is_file()


def test_steps_are_counted_and_marked(allocator) -> None:
    allocator.initialise()
    with oomscope.record(every=2) as recording:
        for _ in range(5):
            allocator.alloc()
            recording.step()
    assert files() == ["snap-0.pickle", "snap-0.step2.pickle", "snap-0.step4.pickle"]
    trace = load_snapshot("snap-0.pickle").traces[0]
    assert [trace.moments[moment].iteration for moment in trace.moment_id] == [0, 1, 2, 3, 4]
    assert load_snapshot("snap-0.step4.pickle").provenance.iteration == 4
    assert allocator.metadata == ""


def test_steps_are_those_of_the_optimizer_that_stepped_first(allocator) -> None:
    generator, critic = (torch.optim.SGD([torch.zeros(1, requires_grad=True)]) for _ in range(2))
    allocator.initialise()
    with oomscope.record(quiet=True) as recording:
        for _ in range(3):
            generator.step()
            critic.step()
            critic.step()
        assert allocator.metadata == '{"iter":3}'
        recording.step()
        generator.step()
        assert allocator.metadata == '{"iter":4}', "the program counts itself"
    generator.step()
    assert allocator.metadata == ""


def test_steps_of_other_parameters_are_steps(allocator) -> None:
    """A program may train another block, or another image, in each."""
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)]} for _ in range(3)])
    groups = optimizer.param_groups
    allocator.initialise()
    with oomscope.record(quiet=True):
        for index in range(3):
            optimizer.param_groups = groups[index : index + 1]
            optimizer.step()
        assert allocator.metadata == '{"iter":3}'


def test_sigterm_keeps_a_snapshot_and_goes_on_as_before(allocator) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    before = signal.getsignal(signal.SIGTERM)
    allocator.initialise()
    with oomscope.record() as recording:
        os.kill(os.getpid(), signal.SIGTERM)
        assert files() == ["snap-0.pickle"]
        assert load_snapshot("snap-0.pickle").provenance.reason == "signal"
        recording.step()
    assert heard == [signal.SIGTERM]
    assert files() == ["snap-0.2.pickle", "snap-0.pickle"], "the program lived on for a step"
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_while_a_snapshot_is_written_waits_for_it(allocator, monkeypatch) -> None:
    heard: list[list[str]] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(files()))
    allocator.initialise()
    document = allocator.document

    def interrupted() -> dict[str, object]:
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", document)
        os.kill(os.getpid(), signal.SIGTERM)
        return document()

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", interrupted)
    with pytest.raises(torch.OutOfMemoryError), oomscope.record():
        allocator.fail()
    assert heard == [["snap-0.oom.pickle", "snap-0.pickle"]]


def test_a_fork_writes_nothing(allocator, monkeypatch) -> None:
    allocator.initialise()
    with oomscope.record(every=1) as recording:
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: -1)
            recording.step()
            assert recording.dump() is None
            assert not recording.is_active
            with pytest.raises(torch.OutOfMemoryError):
                allocator.fail()
        assert files() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "snap-{name}.pickle"},
        {"path": "snap-{rank.pickle"},
        {"path": "snap-{rank!r}.pickle"},
        {"path": "folder/"},
        {"path": ""},
        {"stacks": "cpp"},
        {"max_entries": 0},
        {"max_entries": 1.5},
        {"every": 0},
    ],
)
def test_wrong_arguments_are_refused_at_once(wrong) -> None:
    with pytest.raises(InputError):
        oomscope.record(**wrong)


def test_torch_s_own_initialisation_starts_it_without_waiting_for_its_lock(allocator, monkeypatch) -> None:
    for name, value in {
        "is_initialized": IS_INITIALIZED,
        "_lazy_call": LAZY_CALL,
        "_queued_calls": [],
        "_lazy_seed_tracker": torch.cuda._LazySeedTracker(),
        "_initialized": False,
        "_is_compiled": lambda: True,
        "_cudart": object(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("_cuda_init", "_cuda_getDeviceCount"):
        monkeypatch.setattr(torch._C, name, lambda: None, raising=False)
    with oomscope.record() as recording:
        assert not recording.is_active
        starting = threading.Thread(target=torch.cuda.init, daemon=True)
        starting.start()
        starting.join(timeout=20)
        assert not starting.is_alive(), "it waits for the lock under which torch calls"
        assert recording.is_active
    assert files() == ["snap-0.pickle"]
    with oomscope.record():
        assert allocator.log[-1].startswith("record all"), "CUDA is in use already"


async def coroutine() -> None: ...


def generator():
    yield


async def asynchronous_generator():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous_generator])
def test_what_runs_after_its_call_is_not_decorated(function) -> None:
    with pytest.raises(InputError, match="runs after its call has returned; use `with oomscope"):
        oomscope.record()(function)
