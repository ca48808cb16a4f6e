"""Many ``oomscope bisect`` at once, each a process of its own: a program that forks once it has imported everything.

All of a search is real but its probes, which read a number out of the checkout: sixteen interpreters and their imports
would take most of a minute and show nothing more.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

import oomscope.bisect.run.prober
from oomscope.bisect.run.runner import Here
from oomscope.cli.main import run
from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import fits


def probe(job: ProbeJob, *_more: object, **_options: object) -> ProbeResult:
    assert isinstance(job.target, CheckoutTarget)
    found = re.search(r"peak (\d+)", (Path(job.target.repo) / "size.txt").read_text())
    assert found is not None
    return fits(int(found[1]))


def search(words: list[str], place: Path) -> None:
    """Search with what it says in files beside ``place``, and leave the process."""
    for number, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(place.with_suffix(suffix), os.O_WRONLY | os.O_CREAT, 0o600), number)
    status = 70
    try:
        status = run(words)
        sys.stdout.flush()
    finally:
        os._exit(status)


def main(directory: Path, searches: list[list[str]]) -> None:
    """Run all ``searches`` side by side and write their exit codes to standard output."""
    vars(oomscope.bisect.run.prober)["runner_of"] = lambda *_: Here(run=probe)
    with contextlib.redirect_stdout(io.StringIO()):
        run([*searches[0], "--state", str(directory / "warm")])  # it imports what all others need
    children = []
    for number, words in enumerate(searches):
        child = os.fork()
        if child == 0:
            search(words, directory / str(number))
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
