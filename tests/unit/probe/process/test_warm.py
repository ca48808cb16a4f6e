"""A forked worker is a fresh process by everything that a target, a user or the kernel can tell, only sooner there."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.machine.environment import INDUCTOR
from oomscope.probe.process import launch
from oomscope.probe.process.warm import WarmParents, hides_some_of
from oomscope.probe.result import ProbeResult
from tests.processes import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm parents need Linux")

TRAINING = """
import sys, torch
before = vars(sys).setdefault("before", len(sys.modules))  # also when it is loaded once more
def setup(ctx):
    model = torch.nn.Linear(256, 256, device=ctx.device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        model(torch.ones(8, 256, device=ctx.device)).sum().backward()
        optimizer.step()
        hoard.append(torch.empty(64 * 2**20, device=ctx.device))
        open("imported", "w").write(str(len(sys.modules) - before))
    from oomscope import Target
    return Target(step, model=model, optimizer=optimizer)
hoard = []
"""
FACTS = """
import json, os, random, sys
main = sys.modules["__main__"]
facts = dict(
    cwd=os.getcwd(), arguments=len(sys.argv), originals=len(sys.orig_argv), main=main.__file__, name=main.__spec__.name,
    path=sys.path, own_session=os.getsid(0) == os.getpid(), stdin=os.readlink("/proc/self/fd/0"),
    stdout=os.readlink("/proc/self/fd/1"), stderr=os.readlink("/proc/self/fd/2"),
    environment={k: v for k, v in os.environ.items() if k != "OOMSCOPE_PROBE"}, bytecode=sys.dont_write_bytecode,
    flags=list(sys.flags), unbuffered=sys.stdout.write_through, threads=len(os.listdir("/proc/self/task")),
    descriptors=len(os.listdir("/proc/self/fd")), hash=hash("x"), seen="seen" in vars(sys),
    mask=open("/proc/self/status").read().partition("SigBlk:")[2].split("CapInh")[0],
)
sys.seen = os.environ["SEEN"] = "by the next worker"
sys.path.append("/nowhere")
os.chdir("/")
json.dump(facts, open(OUT, "w"))
os._exit(3)
"""


@pytest.fixture(scope="module")
def parents() -> Iterator[WarmParents]:
    found = WarmParents()
    yield found
    found.close()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "checkout"
    path.mkdir()
    return path


def job_of(checkout: Path, source: str, **fields) -> ProbeJob:
    """Return the job of a harness, which lies outside the checkout and can write to ``OUT`` in it."""
    harness = checkout.parent / "harness.py"
    harness.write_text(f"OUT = {str(checkout / 'out')!r}\n" + textwrap.dedent(source))
    target = HarnessTarget(harness=str(harness), repo=str(checkout))
    return ProbeJob(target=target, backend="virtual", **{"timeout_s": 60.0, **fields})


def awaited(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)
    return path.read_text()


def all_end(pids: list[int]) -> bool:
    """Whether all are gone within a while: what was killed may take a moment to die."""
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


STARTER = """
def starter():
    \"\"\"Return who started the supervisor of the worker, whose child this process is.\"\"\"
    import os
    parent_of = lambda pid: int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return parent_of(parent_of(os.getppid()))
"""


def parent_of_a_worker(parents: WarmParents, checkout: Path, source: str = "", **fields) -> int:
    """Run a worker that ends at once, and return its parent's number."""
    tail = f"\n{STARTER}\nimport os\nopen(OUT, 'w').write(str(starter()))\nos._exit(3)"
    parents.run(job_of(checkout, textwrap.dedent(source) + tail, **fields))
    return int((checkout / "out").read_text())


def told(result: ProbeResult) -> dict[str, object]:
    """Return what a result says, without times and the worker's own memory."""
    document = json.loads(json.dumps(result.to_json()))
    return {name: value for name, value in document.items() if name not in {"wall_s", "worker_rss_bytes"}}


def without_times(snapshot: Path) -> dict[str, object]:
    """Return what a snapshot of this project holds, without when each thing happened."""
    document = pickle.loads(snapshot.read_bytes())
    for event in [*document["device_traces"][0], *document.get("external_annotations", [])]:
        event.pop("time_us", None)
    return document


def test_a_harness_that_runs_out_of_memory_gives_the_same_bytes(parents, checkout: Path) -> None:
    snapshot = checkout.parent / "snapshot.pickle"
    job = job_of(checkout, TRAINING, limit_bytes=1024**3 + 300 * 2**20, snapshot_path=str(snapshot))
    seen = {}
    for name, run in (("fresh", launch.run), ("warm", parents.run)):
        result = run(job)
        seen[name] = told(result), without_times(snapshot), int((checkout / "imported").read_text())
    assert seen["fresh"][0]["outcome"] == "oom"
    assert seen["warm"][:2] == seen["fresh"][:2]
    assert max(seen["fresh"][2], seen["warm"][2]) < 100, "a step imports torch's compiler, or what else a probe needs"


def test_a_target_finds_the_process_as_it_would_be_fresh(parents, checkout: Path, tmp_path: Path) -> None:
    job = job_of(checkout, FACTS, allocator_conf="expandable_segments:True")
    seen = []
    for run in (launch.run, parents.run, parents.run):
        run(job, log_path=tmp_path / "log")
        seen.append(json.loads((checkout / "out").read_text()))
    caches = {facts["environment"].pop(INDUCTOR) for facts in seen}
    assert len(caches) == len(seen), "what one run chose reaches another"
    assert seen[0]["environment"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert seen[1] == seen[0]
    assert seen[2] == seen[0], "something of one worker reached the next"


@pytest.mark.parametrize(
    "source",
    [
        "import os; print('last words', flush=True); os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import resource, ctypes; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)",
        "import no_such_module_anywhere",
    ],
)
def test_every_end_is_reported_as_of_a_fresh_process(parents, checkout: Path, source: str) -> None:
    job = job_of(checkout, source)
    assert told(parents.run(job)) == told(launch.run(job))
    assert is_running(parents.running[-1].pid), "the parent died with it"


def test_the_whole_process_tree_is_killed(parents, checkout: Path) -> None:
    stop = threading.Event()
    source = """
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "1000"])
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open(OUT, "w").write(f"{child.pid} {daemon.pid} {os.getpid()}\\n")
                time.sleep(1000)
            os._exit(0)
        time.sleep(1000)
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(parents.run, job_of(checkout, source), stop=stop)
        pids = [int(pid) for pid in awaited(checkout / "out").split()]
        assert all(map(is_running, pids))
        stop.set()
        with pytest.raises(launch.StoppedError):
            running.result()
    assert all_end(pids)


def test_every_place_of_a_checkout_is_looked_at(parents, checkout: Path) -> None:
    (checkout / "src" / "pydantic").mkdir(parents=True)
    (checkout / "src" / "pydantic" / "__init__.py").touch()
    assert hides_some_of(["torch", "pydantic"], checkout)
    assert not hides_some_of(["torch"], checkout)
    (checkout / "torch.py").touch()
    assert hides_some_of(["torch"], checkout)
    assert parent_of_a_worker(parents, checkout) == os.getpid()


def test_a_worker_that_cannot_be_warm_is_run_afresh(parents, checkout: Path) -> None:
    source = STARTER + "import os; open(OUT, 'a').write(f'{starter()}\\n'); os._exit(75)"
    result = parents.run(job_of(checkout, source))
    first, second = (checkout / "out").read_text().split()
    assert int(first) != os.getpid()
    assert int(second) == os.getpid()
    assert "exited during import with status 75" in result.failure.message
    assert result.notes == ()


def test_a_variable_set_by_the_target_before_torch_reads_it_means_a_fresh_process(parents, checkout: Path) -> None:
    source = """
        import os
        os.environ["WANDB_MODE"] = "offline"
        if LATE: os.environ["TORCH_LOGS"] = "+dynamo"
        open(OUT, "a").write(f"{starter()} ")
        if starter() == OURS: os._exit(3)
        def setup(ctx):
            os._exit(3)
    """
    seen = []
    for late in (False, True):
        (checkout / "out").unlink(missing_ok=True)
        parents.run(job_of(checkout, f"LATE, OURS = {late}, {os.getpid()}\n{STARTER}" + textwrap.dedent(source)))
        seen.append([int(pid) == os.getpid() for pid in (checkout / "out").read_text().split()])
    assert seen == [[False], [False, True]]


def test_a_parent_that_was_started_ahead_serves_the_first_job_and_leaves_no_file(
    checkout: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    parents = WarmParents()
    try:
        parents.prepare()
        [ahead] = parents.running
        assert parent_of_a_worker(parents, checkout) == ahead.pid
        assert parents.running == [ahead]
    finally:
        parents.close()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_the_answers_come_though_a_parent_is_lost(checkout: Path) -> None:
    source = STARTER + textwrap.dedent("""
        import os, signal
        with open(OUT, "a") as out: out.write(f"{starter()}\\n")
        if not os.path.exists(OUT + ".once"):
            open(OUT + ".once", "w").close()
            os.kill(starter(), signal.SIGKILL)
        raise SystemExit("an answer")
    """)
    parents = WarmParents()
    try:
        results = [parents.run(job_of(checkout, source)) for _ in range(2)]
    finally:
        parents.close()
    assert all("an answer" in result.failure.message for result in results)
    warmed, fresh = map(int, (checkout / "out").read_text().split())
    assert not is_running(warmed)
    assert fresh == os.getpid()


def test_nothing_is_left_when_the_caller_is_killed(checkout: Path, tmp_path: Path) -> None:
    source = """
        import os, subprocess, time
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open(OUT, "w").write(f"{os.getppid()} {os.getpid()} {daemon.pid}\\n")
        time.sleep(1000)
    """
    caller = (
        "import json, sys\nfrom oomscope.probe.job import ProbeJob\nfrom oomscope.probe.process import warm\n"
        "warm.run(ProbeJob.from_json(json.loads(sys.argv[1])))"
    )
    arguments = [sys.executable, "-c", caller, json.dumps(job_of(checkout, source).to_json())]
    process = subprocess.Popen(arguments, env={**os.environ, "TMPDIR": str(tmp_path)})
    pids = [int(pid) for pid in awaited(checkout / "out").split()]
    assert all(map(is_running, pids))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert all_end(pids)
