"""What a worker does is a result: each way to end has a test with a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from oomscope.errors import AllocatorConfError, MachineUnfitError
from oomscope.probe.job import CommandTarget, HarnessTarget, ProbeJob, Progress
from oomscope.probe.process.launch import FreshInterpreter, StoppedError, run
from oomscope.probe.result import ProbeResult
from tests import forked
from tests.processes import is_running

PRELUDE = """
import json, os, signal, subprocess, sys, time
job = json.load(open(sys.argv[1]))
result, pipe = sys.argv[2], int(sys.argv[3])
def say(stage, done=0, total=0):
    os.write(pipe, json.dumps(dict(stage=stage, done=done, total=total)).encode() + b"\\n")
def finish(**fields):
    open(result, "w").write(json.dumps(dict(backend="virtual", outcome="fits", **fields)))
"""


CALLER = [
    sys.executable,
    "-c",
    (
        "import json, sys\nfrom oomscope.probe.job import ProbeJob\nfrom oomscope.probe.process.launch import run\n"
        "from oomscope.probe.process.launch import FreshInterpreter\n"
        "run(ProbeJob.from_json(json.loads(sys.argv[1])), start=FreshInterpreter([sys.executable, sys.argv[2]]))"
    ),
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "checkout"
    path.mkdir()
    (path / "harness.py").write_text("def setup(ctx): return lambda: None\n")
    return path


def job_of(checkout: Path, **fields) -> ProbeJob:
    target = HarnessTarget(harness=str(checkout / "harness.py"), repo=str(checkout))
    return ProbeJob(**{"target": target, "backend": "virtual", "timeout_s": 30.0, **fields})


@pytest.fixture
def launch(tmp_path: Path, checkout: Path):
    """Run a job with the worker given as source text."""

    def start(source: str, progress=None, *, log_path=None, stop=None, **fields) -> ProbeResult:
        script = tmp_path / "worker.py"
        script.write_text(PRELUDE + textwrap.dedent(source))
        job = job_of(checkout, **fields)
        worker = FreshInterpreter([sys.executable, "-P", "-S", str(script)])
        return run(job, progress, log_path=log_path, start=worker, stop=stop)

    return start


def await_file(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)
    return path.read_text()


def test_result_and_progress_come_back(launch) -> None:
    steps: list[Progress] = []
    result = launch("say('setup'); say('step', 1, 2); finish(events=7)", steps.append)
    assert (result.outcome, result.events) == ("fits", 7)
    assert [(step.stage, step.done, step.total) for step in steps] == [("setup", 0, 0), ("step", 1, 2)]
    assert result.wall_s > 0
    assert result.worker_rss_bytes > 1024**2


def test_a_result_names_the_variables_that_change_what_is_allocated(launch, monkeypatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    fits = "finish()"
    assert launch(fits).variables == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert launch(fits, cublas_workspace_config=":4096:2").variables == {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}
    assert launch(fits, environment={"CUBLAS_WORKSPACE_CONFIG": None}).variables == {}


def test_exit_without_result_is_a_crash_that_keeps_the_log(launch) -> None:
    result = launch("say('step'); print('on stdout'); sys.stderr.write('on stderr'); sys.exit(9)")
    assert result.outcome == "error"
    assert result.failure.kind == "crash"
    assert "during step with status 9" in result.failure.message
    assert {"on stdout", "on stderr"} <= set(result.failure.detail.split("\n"))


def test_only_the_end_of_a_long_log_is_kept(launch) -> None:
    result = launch("for number in range(5000): print('line', number)\nsys.exit(1)")
    lines = result.failure.detail.splitlines()
    assert lines[-1] == "line 4999"
    assert lines[0].startswith("line ")
    assert len(result.failure.detail) <= 16 * 1024


@pytest.mark.parametrize(
    ("name", "kind"), [("SIGSEGV", "crash"), ("SIGABRT", "crash"), ("SIGKILL", "killed"), ("SIGTERM", "killed")]
)
def test_a_signal_is_named(launch, name: str, kind: str) -> None:
    result = launch(f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); say('setup')\n"
                    f"os.kill(os.getpid(), signal.{name})")  # fmt: skip
    assert result.failure.kind == kind
    assert name in result.failure.message
    assert "during setup" in result.failure.message


def test_a_real_time_signal_has_a_number_only(launch) -> None:
    assert "was ended by signal 35" in launch("os.kill(os.getpid(), 35)").failure.message


def test_a_kill_by_the_kernel_for_want_of_memory_is_distinguished(launch, monkeypatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr("oomscope.probe.process.launch.kernel_oom_kills", lambda: next(counts))
    result = launch("os.kill(os.getpid(), signal.SIGKILL)")
    assert result.failure.kind == "killed"
    assert "out-of-memory killer" in result.failure.message


def test_a_time_out_kills_the_whole_process_tree(launch, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = launch(
        f"""
        say('step')
        child = subprocess.Popen(["sleep", "1000"])
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open({str(pids)!r}, "w").write(f"{{child.pid}} {{daemon.pid}}")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
        """,
        timeout_s=1.0,
    )
    assert result.failure.kind == "timeout"
    assert "during step" in result.failure.message
    assert "more than 1 s" in result.failure.message
    assert not any(is_running(int(pid)) for pid in pids.read_text().split())


def test_a_worker_that_closed_its_descriptors_is_stopped_all_the_same(launch, tmp_path: Path) -> None:
    pid, stop = tmp_path / "pid", threading.Event()
    threading.Thread(target=lambda: (await_file(pid), stop.set())).start()
    source = f"open({str(pid)!r}, 'w').write(str(os.getpid())); os.closerange(0, 100); time.sleep(1000)"
    with pytest.raises(StoppedError):
        launch(source, stop=stop)
    assert not is_running(int(pid.read_text()))


HIDDEN = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            source = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
            os.execve(sys.executable, ["train", "-S", "-c", source, PID], {})
        os._exit(0)
    os.wait()
    while not os.path.exists(PID) or not open(PID).read(): time.sleep(0.01)
"""
"""A daemon with an empty environment and a session of its own."""


def test_the_daemon_of_a_killed_oomscope_is_killed(tmp_path: Path, checkout: Path) -> None:
    script, pid = tmp_path / "worker.py", tmp_path / "daemon"
    script.write_text(PRELUDE + textwrap.dedent(HIDDEN).replace("PID", repr(str(pid))) + "time.sleep(1000)")
    process = subprocess.Popen([*CALLER, json.dumps(job_of(checkout).to_json()), str(script)])
    await_file(pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while is_running(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(int(pid.read_text()))


def test_a_result_survives_a_crash_after_it(launch) -> None:
    result = launch("finish(); os.kill(os.getpid(), signal.SIGKILL)")
    assert result.outcome == "fits"
    assert any("SIGKILL" in note for note in result.notes)


def test_interrupt_kills_the_worker_and_passes_through(tmp_path: Path, checkout: Path) -> None:
    script, pid = tmp_path / "worker.py", tmp_path / "pid"
    script.write_text(PRELUDE + f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")

    def interrupt() -> None:
        await_file(pid)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(job_of(checkout), start=FreshInterpreter([sys.executable, str(script)]))
    thread.join()
    assert not is_running(int(pid.read_text()))


@pytest.mark.parametrize(
    ("harness", "kind", "said"),
    [
        ("import no_such_module_anywhere", "import", "ModuleNotFoundError"),
        ("from model import Missing", "import", "cannot import name 'Missing'"),
        ("import sys; sys.exit('gone')", "import", "sys.exit('gone')"),
        ("import os; os._exit(3)", "crash", "during import with status 3"),
    ],
)
def test_a_harness_that_cannot_be_imported(checkout: Path, harness: str, kind: str, said: str) -> None:
    (checkout / "harness.py").write_text(harness + "\n")
    (checkout / "model.py").write_text("x = 1\n")
    result = forked.probe(job_of(checkout, timeout_s=120.0))
    assert (result.outcome, result.failure.kind) == ("error", kind)
    assert said in result.failure.message
    assert "\n" not in result.failure.message
    assert not list(checkout.rglob("__pycache__"))


@pytest.mark.parametrize(("target", "backend"), [("harness", "virtual"), ("command", "command")])
def test_a_failed_job_is_reported_under_the_backend_that_auto_stood_for(
    launch, checkout: Path, monkeypatch, target: str, backend: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    fields = {"target": CommandTarget(command="true", repo=str(checkout))} if target == "command" else {}
    assert launch("sys.exit(9)", backend="auto", **fields).backend == backend


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_caller_ends_the_worker_and_leaves_nothing(tmp_path: Path, checkout: Path, number: int) -> None:
    script, pid, places = tmp_path / "worker.py", tmp_path / "pid", tmp_path / "tmp"
    places.mkdir()
    script.write_text(PRELUDE + f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    arguments = [*CALLER, json.dumps(job_of(checkout).to_json()), str(script)]
    process = subprocess.Popen(arguments, env={**os.environ, "TMPDIR": str(places)})
    await_file(pid)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert not is_running(int(pid.read_text()))
    assert list(places.iterdir()) == []


def test_no_place_for_temporary_files_is_one_line(launch, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(MachineUnfitError, match="no place for temporary files"):
        launch("finish()")


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_ill_formed_variable_is_named_before_anything_runs(launch, monkeypatch, name: str) -> None:
    monkeypatch.setenv(name, "expandable_segments:Maybe")
    with pytest.raises(AllocatorConfError, match=f"environment variable {name}, column 21: Expected 'True' or 'False'"):
        launch("finish()")
    assert launch("finish()", allocator_conf="expandable_segments:True").outcome == "fits"
