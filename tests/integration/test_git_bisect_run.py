"""``git bisect run oomscope probe cfg.yaml --git-bisect`` finds the commit by git's own search."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.integration.program import OOMSCOPE, commit, git, new_repo

CONFIG = """\
preset: gpt-tiny
data:
  micro_batch_size: {sequences}
device:
  limit: 192MiB
  non_torch_bytes: 0
probe:
  backend: virtual
"""


def test_git_finds_the_commit(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    good = commit(repo, "small batch", {"cfg.yaml": CONFIG.format(sequences=2)})
    commit(repo, "words", {"README.md": "words"})
    broken = commit(repo, "broken", {"cfg.yaml": "preset: gpt-tiny\nmodel: {hiden_size: 1}\n"})
    commit(repo, "mended", {"cfg.yaml": CONFIG.format(sequences=2) + "  seed: 3\n"})
    culprit = commit(repo, "larger batch", {"cfg.yaml": CONFIG.format(sequences=64)})
    git(repo, "bisect", "start", "main", good)
    log = git(repo, "bisect", "run", str(OOMSCOPE), "probe", "cfg.yaml", "--git-bisect", "--quiet")
    assert f"{culprit} is the first bad commit" in log
    assert f"git bisect skip {broken}" in git(repo, "bisect", "log")


def test_a_reader_that_goes_away_never_passes_for_a_bad_commit(tmp_path: Path) -> None:
    probe = f"{OOMSCOPE} probe --command 'sleep 0.2' --git-bisect --verbose"
    line = f"{probe} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (141, "sleep 0.2: import\n", "")
