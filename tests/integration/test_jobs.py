"""Two probes at once through the real command line, forked from one warm process that ends with the search."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from tests.integration.program import OOMSCOPE
from tests.unit.bisect.repos import Repo, fingerprint

CONFIG = "preset: gpt-tiny\ndata: {{micro_batch_size: {}}}\n"


def test_two_jobs_of_one_warm_process(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    hashes = repo.import_line("train.yaml", [CONFIG.format(size) for size in (1, 2, 4)])
    before = fingerprint(repo.path)
    words = [
        f"{hashes[0]}..main",
        "--repo",
        repo.path,
        "--config",
        "train.yaml",
        "--bad",
        "requested>60MiB",
        "--jobs",
        "2",
    ]
    words += ["--backend", "virtual", "--iterations", "1", "--state", tmp_path / "state", "--json", "--quiet"]
    printed = tmp_path / "printed.json"  # more than a pipe holds
    with printed.open("w") as out:
        process = subprocess.Popen([str(OOMSCOPE), "bisect", *map(str, words)], stdout=out, stderr=subprocess.PIPE)
    seen = set[int]()
    while process.poll() is None:
        seen |= warm_processes(process.pid)
        time.sleep(0.25)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    found = json.loads(printed.read_text())
    assert found["culprit"]["commit"] == hashes[2]
    assert [probe["commit"] for probe in found["probes"]] == [hashes[0], hashes[2], hashes[1]]
    assert len({probe["peak"]["requested_bytes"] for probe in found["probes"]}) == 3
    assert len(seen) == 1, "one process is kept warm, for both"
    assert not warm_processes(process.pid)
    assert fingerprint(repo.path) == before


def warm_processes(parent: int) -> set[int]:
    """Return the warm processes that the process ``parent`` has started."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
            started_by = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if started_by == parent and b"--serve" in words:
            found.add(int(directory.name))
    return found
