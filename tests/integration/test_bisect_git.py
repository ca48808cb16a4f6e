"""Bisecting real repositories: the right commit of two hundred, and not a byte of the user's repository changed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.config.load import load_preset
from oomscope.errors import ExitCode
from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from oomscope.units import Bytes
from tests.integration.program import OOMSCOPE
from tests.unit.bisect.probe_results import AVAILABLE, error, fits, oom
from tests.unit.bisect.repos import Repo, fingerprint
from tests.unit.bisect.worlds import harness_code

Seen = TypeVar("Seen")

COMMITS = 200
HALVINGS = 8


def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    """Read the bytes that a run would want out of the checkout; a commit without a number does not import."""
    assert isinstance(job.target, HarnessTarget)
    content = (Path(job.target.repo) / "size.txt").read_text().strip()
    if not content.isdigit():
        return error("import", content)
    size = int(content)
    return fits(size) if size <= AVAILABLE else oom(live=900, requested=100, demand=size)


def search(repo: Repo, tmp_path: Path, good: str, bad: str = "main", paths: tuple[str, ...] = ()) -> BisectResult:
    harness = tmp_path / "harness.py"
    harness.touch()
    request = CommitRequest(
        repo=repo.path,
        range=RevisionRange(good=good, bad=bad),
        paths=paths,
        subject=harness_code(harness, load_preset("gpt-tiny", ["probe.backend=virtual"]).config),
        state_dirs=StateDirs(tmp_path / "state"),
    )
    return bisect_commits(request, probe=probe, environment={})


@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_commits_with_a_tenth_that_do_not_import(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    culprit = rng.randint(1, COMMITS)
    untestable = set(rng.sample(range(1, COMMITS), COMMITS // 10))
    untestable |= {culprit - 1, culprit} - {0, COMMITS} if seed == 0 else set()
    contents = [
        f"does not import ({place})" if place in untestable else str(place + (1000 if place >= culprit else 0))
        for place in range(COMMITS + 1)
    ]
    repo = Repo(tmp_path / "repo")
    hashes = repo.import_line("size.txt", contents)

    result = search(repo, tmp_path, hashes[0])

    good = max(place for place in range(culprit) if place not in untestable)
    bad = min(place for place in range(culprit, COMMITS + 1) if place not in untestable)
    if bad - good == 1:
        assert isinstance(result.culprit, CommitCulprit)
        assert result.culprit.commit == hashes[culprit]
    else:
        assert result.outcome == "suspects"
        assert [suspect.commit for suspect in result.suspects] == hashes[good + 1 : bad + 1]
    assert len(result.probes) <= HALVINGS + 2 + len(result.untestable)


LAST = 29


class History:
    """A random history with merges, octopuses, untestable commits and two files that do not matter."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.parents: list[tuple[int, ...]] = [()]
        self.sizes: list[int | None] = [500]
        files = [{"size.txt": "500"}]
        for number in range(1, LAST + 1):
            recent = range(max(0, number - 6), number)
            first = rng.choice([number - 1, rng.choice(recent)])
            others = rng.sample(recent, rng.choice([0, 0, 0, 0, 1, 1, 2]) % len(recent))
            self.parents.append((first, *(other for other in others if other != first)))
            size = max(self.sizes[parent] or 500 for parent in self.parents[-1])
            size += rng.choice([0, 0, 0, 0, 50, 100, 300, -200]) + (1000 if number == LAST else 0)
            untestable = rng.random() < 0.1 and number != LAST
            self.sizes.append(None if untestable else size)
            own = {"size.txt": f"does not import ({number})" if untestable else str(size)}
            files.append(own | {name: str(number) for name in ("x", "y") if rng.random() < 0.3})
        self.commits = list(zip(self.parents, files, strict=True))
        self.bad = rng.choice([number for number in range(LAST // 2, LAST + 1) if self.is_bad(number)])
        self.paths = tuple(rng.sample(["x", "y"], rng.randint(0, 1)))

    def is_good(self, number: int) -> bool:
        return (self.sizes[number] or AVAILABLE + 1) <= AVAILABLE

    def is_bad(self, number: int) -> bool:
        return (self.sizes[number] or 0) > AVAILABLE

    def begins_to_be_bad(self, number: int) -> bool:
        return self.is_bad(number) and not any(map(self.is_bad, self.parents[number]))


@pytest.mark.parametrize("seed", range(8))
def test_in_any_history_the_culprit_is_bad_and_its_parent_good(tmp_path: Path, seed: int) -> None:
    history = History(seed)
    repo = Repo(tmp_path / "repo")
    hashes = repo.import_graph(history.commits)
    result = search(repo, tmp_path, hashes[0], hashes[history.bad], history.paths)
    numbers = {name: number for number, name in enumerate(hashes)}
    if isinstance(result.culprit, CommitCulprit):
        culprit = numbers[result.culprit.commit]
        assert history.is_good(history.parents[culprit][0])
        assert history.is_bad(culprit)
    else:
        assert result.outcome == "suspects"
        named = [numbers[suspect.commit] for suspect in result.suspects if suspect.commit]
        assert len(named) > 1
        assert any(map(history.begins_to_be_bad, named)), "who is at fault is among the accused"
    ends = [record.peak for record in result.probes if record.role in {"good end", "bad end"}]
    assert ends[0] is not None
    assert ends[1] is not None
    assert sum((step.delta for step in result.steps), start=Bytes()) == ends[1] - ends[0]
    assert len({step.commit for step in result.steps}) == len(result.steps)


HANGING = """\
import os, time
from pathlib import Path

def setup(ctx):
    (Path({marker!r}) / str(os.getpid())).write_text(str(ctx.repo))
    time.sleep(600)
"""


def test_an_interrupt_leaves_nothing_behind(lived_in: Repo, tmp_path: Path) -> None:
    """The program is interrupted while a probe runs in a clone of the repository, in a warm process."""
    marker, state, file = tmp_path / "running", tmp_path / "state", tmp_path / "hanging"
    marker.mkdir()
    file.write_text(HANGING.format(marker=str(marker)))
    before = fingerprint(lived_in.path)
    words = ["bisect", "main~11..main", "--repo", lived_in.path, "--harness", file, "--state", state]
    program = subprocess.Popen(
        [OOMSCOPE, *words, "--backend", "virtual"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
    )
    started = wait_for(lambda: next((path for path in marker.iterdir() if path.read_text()), None))
    assert started is not None
    clone = Path(started.read_text().strip())
    assert clone.is_relative_to(state)
    assert (clone / "train.py").is_file()

    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)

    assert program.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in said
    assert not clone.exists()
    assert not list((state / "checkouts").iterdir())
    assert fingerprint(lived_in.path) == before
    assert not list(tmp_path.glob("ran-*"))
    wait_for(lambda: not Path(f"/proc/{started.name}").exists())


def wait_for(look: Callable[[], Seen], seconds: float = 60.0) -> Seen:
    """Return what ``look`` sees as soon as it is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen = look()
        if seen:
            return seen
        time.sleep(0.05)
    raise TimeoutError
