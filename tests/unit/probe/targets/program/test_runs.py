"""A program is followed by its receipts, ended in time, and leaves no process; real processes, no torch."""

from __future__ import annotations

import os
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest

from oomscope.config.load import load_preset
from oomscope.errors import TargetError
from oomscope.probe.job import ProgramTarget, checkout_job
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.targets.program import runs
from oomscope.probe.targets.program.receipt import ProgramSettings
from oomscope.probe.targets.program.results import Ended, failure_in
from oomscope.probe.targets.program.runs import ProgramRuns, run_program
from oomscope.virtual.cards import CARDS
from oomscope.virtual.settings import VARIABLE as CARD
from tests.processes import is_running

ROOT = Path(__file__).resolve().parents[5]
WRITES = """
    import os, sys, time
    from pathlib import Path
    sys.path.insert(0, ROOT)
    from oomscope.probe.targets.program.receipt import Receipt, path_of
    receipt = Receipt.of_this_process()
    path = path_of(Path(sys.argv[1]), receipt.pid)
    def say(state, iterations):
        receipt.state, receipt.iterations = state, iterations
        receipt.write(path)
""".replace("ROOT", repr(str(ROOT)))


@pytest.fixture
def run(tmp_path: Path):
    def run(program: str, **limits: float) -> Ended:
        folder = tmp_path / "receipts"
        folder.mkdir()
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(WRITES) + textwrap.dedent(program))
        argv = [sys.executable, str(script), str(folder), str(tmp_path)]
        return run_program(argv, dict(os.environ), folder, on_iterations=told.append, **limits)

    told: list[int] = []
    run.told = told
    return run


@pytest.mark.parametrize(("override", "place"), [((), None), (("probe.world_size=1",), "1")])
def test_a_world_of_one_is_played_where_it_was_asked_for(override, place, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    target = ProgramTarget(command="train", repo=str(tmp_path))
    job = checkout_job(target, load_preset("gpt-tiny", override).config)
    environment = ProgramRuns(job, target, tmp_path)._environment(SessionSettings(gpu=CARDS["t4"]), "virtual", tmp_path)
    assert environment.get("WORLD_SIZE") == environment.get("LOCAL_WORLD_SIZE") == place
    assert ("peers=alike" in environment[CARD]) == (place is not None)
    assert ProgramSettings.from_environment(environment).world_size == (place and int(place))


def test_each_run_in_a_world_of_one_has_a_port_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with socket.socket() as taken:
        taken.bind(("", 0))
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        target = ProgramTarget(command="train", repo=str(tmp_path))
        job = checkout_job(target, load_preset("gpt-tiny", []).config)
        runs = ProgramRuns(job, target, tmp_path)
        port = runs._environment(SessionSettings(gpu=CARDS["t4"]), "virtual", tmp_path)["MASTER_PORT"]
        assert port != os.environ["MASTER_PORT"]
    with socket.create_server(("", int(port))):
        pass


def test_status_and_receipts_are_returned(run) -> None:
    ended = run("say('ended', 2); sys.exit(3)")
    assert (ended.status, ended.killed) == (3, False)
    assert [(each.state, each.iterations) for each in ended.receipts] == [("ended", 2)]


def test_iterations_are_reported_as_they_complete(run) -> None:
    run("for number in range(1, 4):\n    say('running', number); time.sleep(0.4)")
    assert run.told == sorted(set(run.told))
    assert run.told[-1] == 3


def test_a_program_that_goes_on_is_killed_after_the_grace(run, monkeypatch) -> None:
    monkeypatch.setattr(runs, "GRACE_S", 0.3)
    begun = time.monotonic()
    ended = run("say('stopped', 3); time.sleep(60)")
    assert ended.killed
    assert ended.status == -9
    assert time.monotonic() - begun < 20


def test_another_process_that_stops_later_gets_time_too(run, monkeypatch) -> None:
    monkeypatch.setattr(runs, "GRACE_S", 1.4)
    program = """
        say('stopped', 3)
        time.sleep(0.8)
        second = Receipt.of_this_process()
        second.state = 'stopped'
        second.write(path_of(Path(sys.argv[1]), 1))
        time.sleep(0.8)
        sys.exit(0)
    """
    assert not run(program).killed


def test_a_program_has_no_more_time_than_it_is_given(run) -> None:
    ended = run("say('running', 1); time.sleep(600)", limit_s=1.0)
    assert (ended.overran, ended.killed) == (True, False)
    assert failure_in(ended).kind == "timeout"


def test_the_daemon_of_a_program_that_ends_is_gone(run, tmp_path: Path) -> None:
    run("""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sh", ["sh", "-c", f"echo $$ > {sys.argv[2]}/child.part; mv {sys.argv[2]}/child.part "
                    f"{sys.argv[2]}/child; while :; do :; done"], {"PATH": os.environ["PATH"]})
            os._exit(0)
        os.wait()
        while not Path(sys.argv[2], "child").exists(): time.sleep(0.01)
        Path(sys.argv[2], "child").write_text(Path(sys.argv[2], "child").read_text().strip())
    """)
    assert not is_running(int((tmp_path / "child").read_text()))


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be run: No such file"):
        run_program([str(tmp_path / "gone")], {}, tmp_path, on_iterations=print)
