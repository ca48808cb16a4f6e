"""No kind of search changes a byte, a mode or a time in a repository in use, also when it is killed in a set-up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oomscope.bisect.run.runner import LocalRunner
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob
from oomscope.probe.process.tempdirs import tempdir
from oomscope.probe.result import ProbeResult
from tests.integration.program import OOMSCOPE
from tests.unit.bisect.probe_results import AVAILABLE, fits, oom
from tests.unit.bisect.repos import Repo, fingerprint

MESSAGE = "several files"
CONFIG = "preset: gpt-tiny\nmodel: {{num_layers: {0}}}\n"
KINDS = {
    "commits": "main~11..main --harness H",
    "side by side": "main~11..main --harness H --jobs 2",
    "every step": "main~11..main --harness H --steps --exhaustive",
    "hunks": "main~11..main --harness H --hunks",
    "paths": "main~11..main --harness H -- size.txt",
    "no good end": "..main --harness H --find-good",
    "code and configuration": "main~11..main --harness H --axis both --config size.txt",
    "environment": "main --harness H --axis environment --good-env A=1 --bad-env A=2",
    "configuration": "main~11..main --config conf.yaml",
    "keys of two commits": "main~1..main --axis config --config conf.yaml",
    "repaired and set up": "main~11..main --harness H --setup S --fixup F --fixup P",
}


def probe(job: ProbeJob, *_more: object, **_options: object) -> ProbeResult:
    if isinstance(job.target, BundledTarget):
        size = 300 * job.target.config["model"]["num_layers"]
    else:
        assert isinstance(job.target, HarnessTarget)
        size = int((Path(job.target.repo) / "size.txt").read_text())
    return fits(size) if size <= AVAILABLE else oom(live=900, requested=100, demand=size)


@pytest.fixture
def searched(lived_in: Repo, tmp_path: Path) -> Repo:
    """Days later there are two commits more, of several files each, one of them a configuration."""
    stream = []
    for number, files in enumerate(
        (
            {"conf.yaml": CONFIG.format(2), "train.py": "print()\n"},
            {"conf.yaml": CONFIG.format(4), "size.txt": "1500", "train.py": "print(0)\n"},
        )
    ):
        stream += ["commit refs/heads/main", f"committer Ada <ada@example.org> {1_700_200_000 + number} +0000"]
        stream += [f"data {len(MESSAGE)}", MESSAGE, *(["from refs/heads/main^0"] if number == 0 else [])]
        for path, text in files.items():
            stream += [f"M 644 inline {path}", f"data {len(text)}", text]
    lived_in.git("fast-import", "--quiet", stdin="\n".join([*stream, ""]).encode())
    for trace in tmp_path.glob("ran-*"):
        trace.unlink()
    (tmp_path / "H").touch()
    # It makes a blob that the repository has: were git to write it, it would renew the time of the object there.
    (tmp_path / "p.patch").write_text("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-print(2)\n+print(1)\n")
    return lived_in


@pytest.mark.parametrize("kind", KINDS)
def test_the_repository_stays_as_it_is(kind: str, searched: Repo, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("oomscope.bisect.run.prober.runner_of", lambda *_: LocalRunner(run=probe))
    given = {"H": str(tmp_path / "H"), "S": "cp size.txt built", "F": "*: echo repaired > other.txt"}
    given["P"] = f"main~11: {tmp_path / 'p.patch'}"
    words = [given.get(word, word) for word in KINDS[kind].split()]
    cut = words.index("--") if "--" in words else len(words)
    options = ["--repo", str(searched.path), "--state", str(tmp_path / "state"), "--quiet"]
    before = fingerprint(searched.path)
    status = run(["bisect", *words[:cut], *options, *words[cut:]])
    said = capsys.readouterr()
    assert status in {ExitCode.OK, ExitCode.INCONCLUSIVE}, said
    assert fingerprint(searched.path) == before
    assert not list(tmp_path.glob("ran-*")), "no hook ran"
    assert not list((tmp_path / "state/checkouts").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_search_that_is_ended_in_a_set_up_leaves_nothing_running(number: int, lived_in: Repo, tmp_path: Path) -> None:
    before, state = fingerprint(lived_in.path), tmp_path / "state"
    (tmp_path / "H").touch()
    setup = f"sleep 600 & echo $! > '{tmp_path}/begun'; mv '{tmp_path}/begun' '{tmp_path}/running'; wait"
    words = ["bisect", "main~11..main", "--repo", lived_in.path, "--harness", tmp_path / "H", "--state", state]
    program = subprocess.Popen(
        [OOMSCOPE, *words, "--backend", "virtual", "--setup", setup],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
    )
    wait_until((tmp_path / "running").exists)
    program.send_signal(number)
    _, said = program.communicate(timeout=60)
    assert program.returncode == {signal.SIGTERM: 143}.get(number, -9)
    assert "Traceback" not in said
    child = int((tmp_path / "running").read_text())
    wait_until(lambda: has_ended(child))
    with tempdir(StateDirs(state).checkouts, "bisect"):
        pass  # the next search
    assert not list((state / "checkouts").iterdir())
    assert fingerprint(lived_in.path) == before


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
