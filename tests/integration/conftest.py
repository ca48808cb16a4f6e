"""What several integration tests begin with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.bisect.repos import Repo


@pytest.fixture
def lived_in(tmp_path: Path) -> Repo:
    """A repository in use: dirty and staged files, a stash, a detached head, and hooks that leave traces."""
    repo = Repo(tmp_path / "in use")
    sizes = [index + (1000 if index >= 7 else 0) for index in range(12)]
    repo.import_commits([{"size.txt": str(size), "train.py": f"print({at})\n"} for at, size in enumerate(sizes)])
    (repo.path / "train.py").write_text("print('stashed')\n")
    repo.git("stash", "push", "--quiet")
    repo.git("checkout", "--quiet", "--detach", "main~3")
    (repo.path / "train.py").write_text("print('being edited')\n")
    (repo.path / "staged.py").write_text("")
    repo.git("add", "staged.py")
    (repo.path / "untracked.log").write_text("")
    for name in ("post-checkout", "post-merge", "post-index-change", "reference-transaction", "pre-auto-gc"):
        hook = repo.path / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran-{name}'\n")
        hook.chmod(0o755)
    # A file whose time differs from the index's would make a careless `git status` rewrite the index.
    os.utime(repo.path / "size.txt", (1, 1))
    return repo
