"""What probes side by side save: the demo's first bisect with 1, 2 and 4 jobs, beside ``git bisect run``.

"Asked" are the probes that the search asked for; the others were begun early, guessed wrong and stopped. On a machine
that does other work too, wall times say little beyond this machine at this hour: the load is printed with them.
``git bisect run`` starts ``oomscope probe --git-bisect`` for each commit. It is told both ends and does not probe them.

    OMP_NUM_THREADS=1 python benchmarks/bisect_jobs.py [--jobs 1 2 4] [--repeats N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from warm import cpu_seconds, demo_history

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.run.places import Places
from oomscope.bisect.run.scheduler import Action, Threads
from oomscope.bisect.targets.subjects import own_code_of
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.demo.history import HARNESS
from oomscope.probe.job import HarnessTarget
from oomscope.probe.targets.settings import harness_settings

OVERRIDES = ("device.limit=7GiB", "probe.iterations=4", "probe.backend=virtual")


def main() -> None:
    """Print a row for each number of jobs, and one for git."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=3, help="bisects of each kind, of which the quickest counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repo = demo_history(folder)
        bisect(repo, folder, Counting(1))  # starts the warm process that all of them fork from
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"{'':16}{'asked':>8}{'begun':>8}{'wall s':>9}{'CPU s':>9}  culprit")
        for jobs in options.jobs:
            rows = [timed(lambda jobs=jobs: side_by_side(repo, folder, jobs)) for _ in range(options.repeats)]
            show(f"--jobs {jobs}", *min(rows))
        show("git bisect run", *timed(lambda: git_bisect_run(repo)))


@dataclass
class Counting(Threads):
    """Threads that are counted."""

    begun: int = field(default=0, init=False)

    def start(self, slot: int, action: Action) -> None:
        """Count it and start a thread."""
        self.begun += 1
        super().start(slot, action)


def side_by_side(repo: Path, folder: Path, jobs: int) -> tuple[int, int, str]:
    """Return how many probes were asked for and begun, and the commit found."""
    executor = Counting(jobs)
    result = bisect(repo, folder, executor)
    if not isinstance(result.culprit, CommitCulprit):
        sys.exit(result.message)
    return len(result.probes), executor.begun, result.culprit.commit[:10]


def bisect(repo: Path, folder: Path, executor: Threads) -> BisectResult:
    """Do the demo's first bisect, with nothing remembered."""
    target = HarnessTarget(harness=str(HARNESS), repo="")
    request = CommitRequest(
        repo=repo,
        range=RevisionRange(good="v0.1", bad="v0.2"),
        subject=own_code_of(target, harness_settings(OVERRIDES), OVERRIDES),
        use_cache=False,
        places=Places(folder / "state"),
    )
    return bisect_commits(request, executor=executor)


def git_bisect_run(repo: Path) -> tuple[int, int, str]:
    """Let git bisect, and return the same."""
    probe = [
        str(Path(sys.executable).with_name("oomscope")),
        "probe",
        "--harness",
        str(HARNESS),
        "--repo",
        ".",
    ]
    git(repo, "bisect", "start", "v0.2", "v0.1")
    said = git(repo, "bisect", "run", *probe, *OVERRIDES, "--git-bisect")
    probes = git(repo, "bisect", "log").count("\ngit bisect ") - 1
    found = git(repo, "rev-parse", "refs/bisect/bad").strip()
    git(repo, "bisect", "reset")
    if "is the first bad commit" not in said:
        sys.exit(said)
    return probes, probes, found[:10]


def git(repo: Path, *arguments: str) -> str:
    """Return what git says."""
    done = subprocess.run(["git", *arguments], cwd=repo, capture_output=True, text=True, check=True)
    return done.stdout


def timed(action: Callable[[], tuple[int, int, str]]) -> tuple[float, float, tuple[int, int, str]]:
    """Return the seconds that ``action`` takes, wall and CPU, and what it returns."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    found = action()
    return time.perf_counter() - wall, cpu_seconds() - cpu, found


def show(name: str, wall: float, cpu: float, found: tuple[int, int, str]) -> None:
    """Print a row."""
    asked, begun, culprit = found
    print(f"{name:16}{asked:8}{begun:8}{wall:9.1f}{cpu:9.1f}  {culprit}")


if __name__ == "__main__":
    main()
