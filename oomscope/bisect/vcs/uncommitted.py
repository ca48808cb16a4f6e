"""Whether a work tree holds changes that are in no commit, found out without running a program that its settings name.

``git status`` runs the filters of the repository's settings (gitattributes(5)) and git inside each submodule. So
filters are switched off, and each submodule is asked in a call of its own. Git LFS files are compared with their
pointers.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from oomscope.bisect.vcs.checkouts import is_content_of
from oomscope.bisect.vcs.git import Git

_STATUS = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=dirty")
_GITLINK = "160000 "
_FILTER = "filter."
_SWITCHED_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}


def has_uncommitted_changes(folder: Path) -> bool:
    """Return whether a tracked file of the work tree around ``folder``, or of its submodules, is not as committed.

    A file behind a filter other than Git LFS whose times changed counts as changed: its content cannot be compared.

    Raises:
        GitError: git cannot read it.
    """
    asked = Git(folder, (folder,))
    root = Path(os.fsdecode(asked.output("rev-parse", "--show-toplevel").removesuffix(b"\n")))
    git = _without_filters(Git(root, (folder, root)))
    for row in git.listed(*_STATUS):
        status, path = row[:2], row[3:]
        if status != " M" or not is_content_of(git.output("cat-file", "blob", f":{path}"), root / path):
            return True
    links = (row.partition("\t")[2] for row in git.listed("ls-files", "--stage", "-z") if row.startswith(_GITLINK))
    return any(has_uncommitted_changes(root / path) for path in links if (root / path / ".git").exists())


def _without_filters(git: Git) -> Git:
    """Return git for which no filter has a program, whichever the repository's settings name."""
    listed = git.listed("config", "--list", "--name-only", "-z")
    names = {name.removeprefix(_FILTER).rpartition(".")[0] for name in listed if name.startswith(_FILTER)}
    settings = ((f"{_FILTER}{name}.{key}", value) for name in sorted(names) for key, value in _SWITCHED_OFF.items())
    return replace(git, settings=tuple(settings))
