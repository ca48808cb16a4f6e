"""An entry and a command as targets of ``probe`` and ``bisect``, through the installed program.

The repositories here hold an ``oomscope`` of their own, and modules named like ours: neither ever gets in the way.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import oomscope as oomscope_package
from tests.integration.program import OOMSCOPE, SNAPSHOT, commit, new_repo, oomscope
from tests.unit.bisect.repos import fingerprint

OWN_OOMSCOPE = {
    "oomscope/__init__.py": "raise AssertionError('this oomscope is the checkout\\'s')",
    "oomscope/probe/__init__.py": "",
    "oomscope/probe/process/worker.py": "raise AssertionError('this worker is the checkout\\'s')",
    "probe.py": "NAME = 'the checkout\\'s'",
    "errors.py": "NAME = 'the checkout\\'s'",
}
PRINTS = "import sys\nprint('peak', open('size.txt').read().strip(), file=sys.stderr)\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return new_repo(tmp_path / "a repo")


def bisect(repo: Path, tmp_path: Path, *words: str, code: int = 0, **variables: str) -> dict[str, Any]:
    """Search ``repo`` and return the document; the repository is as it was, and nothing is left."""
    before = fingerprint(repo)
    command = [str(OOMSCOPE), "bisect", *words, "--repo", str(repo), "--state", str(tmp_path / "state"), "--json"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=280)
    assert done.returncode == code, done.stderr
    assert fingerprint(repo) == before
    return json.loads(done.stdout)


def probe(*words: str | Path, code: int) -> dict[str, Any]:
    done = oomscope("probe", *words, "--json", "--quiet")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def culprit(document: dict[str, Any]) -> str:
    assert document["outcome"] == "culprit", document["message"]
    return document["culprit"]["commit"]


def repeated(document: dict[str, Any], which: str, tmp_path: Path) -> dict[str, Any]:
    """Run the commands that are to repeat a probe, and return its result."""
    place = tmp_path / which
    place.mkdir()
    *before, last = document[which]["commands"]
    script = "\n".join(("set -e", *before, f"{last} --json --quiet || true"))
    path = f"{OOMSCOPE.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=place, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    )
    return json.loads(done.stdout)


COMMAND = ("--command", "python measure.py", "--metric-regex", r"peak (\d+ \w+)", "--bad", "requested>20MiB")


def test_the_commit_after_which_a_command_prints_more(repo: Path, tmp_path: Path) -> None:
    files = {"measure.py": PRINTS, **OWN_OOMSCOPE}
    good = commit(repo, "good", {**files, "size.txt": "5 MiB"})
    commit(repo, "broken", {"measure.py": "import gone"})
    commit(repo, "well", {"measure.py": PRINTS, "size.txt": "7 MiB"})
    guilty = commit(repo, "guilty", {"size.txt": "70 MiB"})

    document = bisect(repo, tmp_path, f"{good}..", *COMMAND)

    assert culprit(document) == guilty
    assert document["culprit"]["delta"]["requested_bytes"] == 63 * 2**20
    assert repeated(document, "first_bad", tmp_path)["peak"]["requested_bytes"] == 70 * 2**20


IMPORTS = "from tiny import SIZE\nprint('peak', SIZE)\n"
FINDER = """
import sys
MAPPING = {"tiny": SOURCE}

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        from importlib.util import spec_from_file_location
        if name in MAPPING:
            place = MAPPING[name]
            return spec_from_file_location(name, place + "/__init__.py", submodule_search_locations=[place])

sys.meta_path.append(Finder)
"""
"""As setuptools writes it for ``pip install -e .``."""


@pytest.mark.parametrize("how", ["path", "editable", "command"])
def test_the_code_of_each_commit_runs_where_python_would_find_the_users(how: str, repo: Path, tmp_path: Path) -> None:
    good = commit(repo, "good", {"scripts/measure.py": IMPORTS, "src/tiny/__init__.py": "SIZE = '5 MiB'"})
    guilty = commit(repo, "guilty", {"src/tiny/__init__.py": "SIZE = '70 MiB'"})
    commit(repo, "well", {"src/tiny/__init__.py": "SIZE = '71 MiB'"})
    site = tmp_path / "site"
    site.mkdir()
    (site / "__editable___tiny_finder.py").write_text(FINDER.replace("SOURCE", repr(str(repo / "src" / "tiny"))))
    (site / "sitecustomize.py").write_text("import __editable___tiny_finder")
    script = repo / "scripts" / "measure.py" if how == "command" else "scripts/measure.py"
    words = ["--command", f"python '{script}'", *COMMAND[2:]]
    path = site if how == "editable" else repo / "src"
    document = bisect(repo, tmp_path, f"{good}..", *words, PYTHONPATH=str(path))
    assert culprit(document) == guilty


def test_the_commit_after_which_a_command_writes_the_snapshot_of_a_failure(repo: Path, tmp_path: Path) -> None:
    good = commit(repo, "good", {"measure.py": SNAPSHOT, "size.txt": str(5 << 20)})
    guilty = commit(repo, "guilty", {"size.txt": str(18 << 20)})
    words = ("--command", "python measure.py", "--snapshot-glob", "out/*.json")
    document = bisect(repo, tmp_path, f"{good}..", *words)
    assert culprit(document) == guilty
    assert document["verdict"]["kind"] == "capacity"
    assert {row["site"]["file"] for row in document["sites"] if row["site"]} == {"model.py"}


ENTRY = """
import torch
import errors, probe  # the checkout's own
from oomscope import Context, Target

def build(ctx: Context) -> Target:
    assert (probe.NAME, errors.NAME) == ("the checkout's", "the checkout's")
    def step():
        torch.empty(WIDTH << 20, dtype=torch.uint8, device=ctx.device)
    return Target(step)
"""


def entry(width: int) -> dict[str, str]:
    return {"src/tiny/train.py": ENTRY.replace("WIDTH", str(width)), "src/tiny/__init__.py": ""}


def test_the_commit_after_which_an_entry_of_its_own_needs_more(repo: Path, tmp_path: Path) -> None:
    good = commit(repo, "good", {**OWN_OOMSCOPE, **entry(5)})
    commit(repo, "speaks to an older oomscope", {"src/tiny/train.py": "from oomscope import Harness"})
    commit(repo, "well", entry(6))
    guilty = commit(repo, "guilty", entry(60))
    words = ("--entry", "tiny.train:build", "--backend", "virtual", "--bad", "requested>20MiB", "--steps")
    document = bisect(repo, tmp_path, f"{good}..", *words, PYTHONPATH=".")
    assert culprit(document) == guilty
    reasons = {row["subject"]: row["reason"] for row in document["probes"]}
    assert "cannot import name 'Harness'" in reasons.get("speaks to an older oomscope", "cannot import name 'Harness'")
    assert document["culprit"]["sites"][0]["site"]["file"] == "src/tiny/train.py"
    assert " --entry tiny.train:build --repo " in document["last_good"]["commands"][-1]


def test_todays_harness_drives_a_checkout_with_an_oomscope_of_its_own(repo: Path, tmp_path: Path) -> None:
    commit(repo, "only", {**OWN_OOMSCOPE, "tiny.py": "WIDTH = 5"})
    harness = tmp_path / "harness.py"
    harness.write_text(
        "import errors, oomscope, probe, tiny\n"
        "from oomscope.probe.targets import context\n"
        "raise SystemExit([probe.NAME, errors.NAME, tiny.WIDTH, oomscope.__file__, context.__file__])\n"
    )
    words = ("probe", "--harness", harness, "--repo", repo, "--backend", "virtual", "--json", "--quiet")
    environment = {**os.environ, "PYTHONPATH": "."}
    command = [str(OOMSCOPE), *map(str, words)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    message = json.loads(done.stdout)["failure"]["message"]
    package = str(Path(oomscope_package.__file__).parent)
    own = "the checkout's"
    assert repr([own, own, 5, f"{package}/__init__.py", f"{package}/probe/targets/context.py"]) in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--command", "true", "--exit-status", "--bad", "fragmentation"], "--bad fragmentation needs a snapshot"),
        (["--command", "true", "--exit-status", "--bad", "requested>1GiB"], "--bad requested>1GiB needs bytes"),
        (["--command", "true", "--exit-status", "--steps"], "--steps needs bytes"),
        (["--command", "echo", "--metric-regex", "(x)", "--bad", "reserved>1GiB"], "needs a snapshot"),
        (["--entry", "a:b", "--bad", "exit"], "--bad exit without --command"),
        (["--entry", "a:b", "--command", "true"], "both --entry and --command"),
        (["--entry", "a:b", "--config", "c.yaml"], "both --config and --entry"),
        (["--entry", "a b"], "is not an entry"),
        (["--command", "no-such-program-anywhere"], "on your PATH"),
        (["--snapshot-glob", "*", "--harness", "h.py"], "--snapshot-glob without --command"),
        (["--exit-status"], "--exit-status without --command"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    from oomscope.cli.main import run

    good = commit(repo, "good", {"a": "1"})
    commit(repo, "bad", {"a": "2"})
    code = run(["bisect", f"{good}..", "--repo", str(repo), "--state", str(tmp_path / "state"), *words])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert said in error


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    seconds = f"98765.{os.getpid()}"
    (tmp_path / "hang.sh").write_text(f"setsid sleep {seconds} &\necho begun\nsleep {seconds}\n")
    inner = "oomscope probe --command 'sh hang.sh' --quiet"
    begun = time.monotonic()
    document = probe("--command", inner, "--repo", tmp_path, "--timeout", "5", code=6)
    assert document["failure"]["kind"] == "timeout"
    assert time.monotonic() - begun < 60
    left = [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if seconds.encode() in _content(entry)]
    assert left == []


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_command_that_is_a_probe_of_oomscopes_own(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(
        "import torch\n"
        "def setup(ctx):\n"
        "    return lambda: torch.empty(30 << 20, dtype=torch.uint8, device=ctx.device)\n"
    )
    inner = "oomscope probe --harness h.py --backend virtual --limit 1040MiB --snapshot s.pickle"
    document = probe("--command", inner, "--snapshot-glob", "*.pickle", "--repo", tmp_path, code=3)
    assert document["verdict"]["kind"] == "capacity"
    assert document["verdict"]["available_bytes"] == 16 << 20
    assert document["oom"]["requested_bytes"] == 30 << 20
    assert document["oom"]["site"]["file"] == "h.py"
