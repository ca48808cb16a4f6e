"""What a probe costs beside the measurement: in a fresh process each, and forked from a warm parent.

The overhead is the time a probe takes less that of the same measurement repeated inside one process that is warm
already. CPU seconds are told too, since a busy machine stretches the others. The bisect is the one of `oomscope demo`.

    OMP_NUM_THREADS=1 python benchmarks/warm.py [--probes N] [--no-bisect]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.targets.subjects import own_code_of
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.config.load import load_preset
from oomscope.demo import history
from oomscope.probe.job import HarnessTarget, ProbeJob, bundled_job
from oomscope.probe.measure import measure
from oomscope.probe.process import launch
from oomscope.probe.process.warm import WarmParents
from oomscope.probe.targets.settings import harness_settings
from oomscope.units import format_size

TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the overhead of both ways, the memory of the warm parent, and the time of a bisect both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=5, help="probes each way")
    parser.add_argument("--no-bisect", action="store_true", help="leave out the bisect")
    options = parser.parse_args()
    job = replace(bundled_job(load_preset("gpt-tiny").config), backend="virtual")
    parents = WarmParents()
    ways: dict[str, Callable[..., object]] = {"fresh": launch.run, "warm": parents.run}
    print("gpt-tiny, seconds wall / CPU      first    least   median")
    inside = shown("inside one process", [timed(lambda: within(job)) for _ in range(options.probes + 1)])
    for name, run in ways.items():
        least = shown(name, [timed(lambda run=run: run(job)) for _ in range(options.probes + 1)])
        print(f"  overhead of {name}, least of wall / CPU: {least[0] - inside[0]:.2f} / {least[1] - inside[1]:.2f}")
    for parent in parents.running:
        memory = sizes(parent.pid)
        print(
            f"memory of the warm parent: {format_size(memory['Rss'])}, {format_size(memory['Private_Dirty'])} its own"
        )
    if not options.no_bisect:
        with tempfile.TemporaryDirectory() as folder:
            repo = demo_history(Path(folder))
            for name, run in ways.items():
                wall, cpu = timed(lambda run=run: bisect(repo, Path(folder) / "state", run))
                print(f"bisect v0.1..v0.2 of the demo, {name}: {wall:.1f} s wall, {cpu:.1f} s CPU")
    parents.close()


def within(job: ProbeJob) -> None:
    """Measure in this process."""
    measure(job, progress=lambda _: None, keep=lambda _: None)


def bisect(repo: Path, state: Path, probe: Callable[..., object]) -> None:
    """Do the demo's first bisect, with nothing remembered."""
    overrides = ("device.limit=7GiB", "probe.iterations=4", "probe.backend=virtual")
    settings = harness_settings(overrides)
    request = CommitRequest(
        repo=repo,
        range=RevisionRange(good="v0.1", bad="v0.2"),
        subject=own_code_of(HarnessTarget(harness=str(history.HARNESS), repo=""), settings, overrides),
        bad=Bad.parse("any-oom"),
        use_cache=False,
        state_dirs=StateDirs(state),
    )
    bisect_commits(request, probe=probe)


def demo_history(folder: Path) -> Path:
    """Build the demo's repository."""
    history.build(folder / "tinytrain")
    return folder / "tinytrain"


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that ``action`` takes: wall, and CPU of this process and all under it."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    action()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, of children that have ended, and of living ones and their children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = 0
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        living += sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime: proc_pid_stat(5)
    return time.process_time() + ended.ru_utime + ended.ru_stime + living / TICKS


def shown(name: str, times: list[tuple[float, float]]) -> tuple[float, float]:
    """Print the first time, and least and median of the others; return the least wall and the least CPU."""
    first, rest = times[0], times[1:]
    least = (min(wall for wall, _ in rest), min(cpu for _, cpu in rest))
    median = [statistics.median(column) for column in zip(*rest, strict=True)]
    cells = [f"{wall:.2f}/{cpu:.2f}" for wall, cpu in (first, least, median)]
    print(f"{name:30}" + "".join(f"{cell:>12}" for cell in cells))
    return least


def sizes(pid: int) -> dict[str, int]:
    """Return what the kernel tells of a process's memory, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}


if __name__ == "__main__":
    main()
