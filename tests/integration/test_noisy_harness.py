"""A command that answers wrongly at every fifth probe, whatever the commit: the commit is found all the same."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from tests.integration.program import commit, new_repo, oomscope

MEASURE = """\
from pathlib import Path

COUNT = Path(__file__).parent / "count"
count = int(COUNT.read_text()) + 1 if COUNT.exists() else 1
COUNT.write_text(str(count))
size = int(Path("size").read_text())
print("peak", 112 - size if count % 5 == 0 else size, "MiB")
"""
CULPRIT = 6


def test_the_commit_is_found_although_every_fifth_probe_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    repo = new_repo(tmp_path / "repo")
    commits = [
        commit(repo, f"commit {place}", {"size": str(96 if place >= CULPRIT else 16), "place": str(place)})
        for place in range(9)
    ]
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    arguments = ["--repo", repo, "--command", command, "--metric-regex", r"peak (\d+ \w+)", "--bad", "requested>64MiB"]
    ends = f"{commits[0]}..{commits[-1]}"

    done = oomscope("bisect", ends, *arguments, "--confidence", "0.95", "--state", tmp_path / "state", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["culprit"]["commit"] == commits[CULPRIT]
    assert int((tmp_path / "count").read_text()) == len(document["probes"]) >= 5
    assert document["confidence"] >= 0.95
    wrong = [
        probe for probe in document["probes"] if (probe["commit"] in commits[CULPRIT:]) != (probe["answer"] == "bad")
    ]
    assert wrong, "an answer was wrong"
