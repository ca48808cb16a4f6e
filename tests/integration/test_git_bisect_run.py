"""``git bisect run oomscope probe … --git-bisect`` finds the commit by git's own search."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.integration.program import OOMSCOPE, SNAPSHOT, commit, git, new_repo


def test_git_finds_the_commit(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    good = commit(repo, "small batch", {"measure.py": SNAPSHOT, "size.txt": str(5 << 20), ".gitignore": "out"})
    commit(repo, "words", {"README.md": "words"})
    broken = commit(repo, "broken", {"measure.py": "import gone"})
    commit(repo, "mended", {"measure.py": SNAPSHOT, "size.txt": str(6 << 20)})
    culprit = commit(repo, "larger batch", {"size.txt": str(18 << 20)})
    git(repo, "bisect", "start", "main", good)
    words = ("--command", f"{sys.executable} measure.py", "--snapshot-glob", "out/*.json")
    log = git(repo, "bisect", "run", str(OOMSCOPE), "probe", *words, "--git-bisect", "--quiet")
    assert re.search(f"{culprit} is the first '?bad'? commit", log)
    assert f"git bisect skip {broken}" in git(repo, "bisect", "log")


def test_a_reader_that_goes_away_never_passes_for_a_bad_commit(tmp_path: Path) -> None:
    probe = f"{OOMSCOPE} probe --command 'sleep 0.2' --git-bisect --verbose"
    line = f"{probe} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (141, "sleep 0.2: import\n", "")
