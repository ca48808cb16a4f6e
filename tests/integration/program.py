"""Runs the installed program and git, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OOMSCOPE = Path(sys.executable).with_name("oomscope")
SNAPSHOT = """
import json, os
size = int(open("size.txt").read())
frames = [{"filename": os.path.abspath("model.py"), "line": 7, "name": "forward"}]
event = {"addr": 1 << 30, "size": size, "stream": 0, "frames": frames}
events = [{**event, "action": "segment_alloc", "size": 20 << 20}, {**event, "action": "alloc"}]
if size > 15 << 20:
    events.append({**event, "action": "oom", "size": size, "device_free": 1 << 20})
os.makedirs("out", exist_ok=True)
json.dump({"segments": [], "device_traces": [events]}, open("out/rank0.json", "w"))
raise SystemExit(size > 15 << 20)
"""
"""A program without torch: writes the snapshot of as much as size.txt says, and fails where that is too much."""


def oomscope(*arguments: str | Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run the installed oomscope."""
    command = [str(OOMSCOPE), *map(str, arguments)]
    # Without ``env`` the child would also see COLUMNS, which the readline library sets behind Python's back.
    environment = dict(os.environ)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=timeout)


def git(repo: Path, *arguments: str, timeout: float = 280) -> str:
    """Run git on ``repo`` as nobody in particular and return what it prints."""
    identity = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in IDENTITY.items()}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(repo), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=timeout)
    return done.stdout.strip()


IDENTITY = {"NAME": "Test", "EMAIL": "test@example.org", "DATE": "2025-01-01T00:00:00Z"}


def commit(repo: Path, subject: str, files: dict[str, str]) -> str:
    """Write ``files``, commit them and return the hash."""
    for name, text in files.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(repo, "rev-parse", "HEAD")


def new_repo(path: Path) -> Path:
    """Make an empty repository with the branch main."""
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    return path
