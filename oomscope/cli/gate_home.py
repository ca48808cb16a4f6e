"""Where a suite is at home: its path in its repository, and what tells this repository from others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.errors import GitError
from oomscope.files import real_path

if TYPE_CHECKING:
    from oomscope.bisect.vcs.git import Git
    from oomscope.gate.home import Home


def home_of(file: Path) -> Home | None:
    """Return where ``file`` lies in its repository; None where it lies in none, or git cannot read it."""
    from oomscope.bisect.vcs.git import Git
    from oomscope.gate.home import Home

    target = real_path(file)
    git = Git(target.parent, (target.parent,))
    try:
        path = git.text("rev-parse", "--show-prefix") + target.name
    except GitError:
        return None
    return Home(path=path, first_commit=_first_commit(git), remote=_remote(git))


def _first_commit(git: Git) -> str:
    """Return the commit with which the history began; empty before it did, or where it is cut off."""
    try:
        if git.text("rev-parse", "--is-shallow-repository") == "true":
            return ""
        return git.text("rev-list", "--first-parent", "--max-parents=0", "HEAD")
    except GitError:
        return ""


def _remote(git: Git) -> str:
    """Return what the repository is called at ``origin``, or at its only remote; empty where it has none."""
    from oomscope.gate.home import remote_name

    try:
        names = git.text("remote").splitlines()
        name = "origin" if "origin" in names else names[0] if len(names) == 1 else None
        return remote_name(git.text("config", "--get", f"remote.{name}.url")) if name else ""
    except GitError:
        return ""
