"""Whether a work tree holds changes that are in no commit, found out without running a program that its settings name.

``git status`` compares content through the filters of the repository's settings (gitattributes(5), ``filter``), and
asks git inside each submodule, which the settings given here do not reach. So filters are switched off, and each
submodule is asked in a call of its own. Files that Git LFS filters are compared with their pointers.
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
    if any(not _is_as_committed(git, row) for row in git.listed(*_STATUS)):
        return True
    return any(has_uncommitted_changes(module) for module in _submodules(git))


def _without_filters(git: Git) -> Git:
    """Return git for which no filter has a program, whichever the repository's settings name."""
    names = {
        name.removeprefix(_FILTER).rpartition(".")[0]
        for name in git.listed("config", "--list", "--name-only", "-z")
        if name.startswith(_FILTER)
    }
    settings = ((f"{_FILTER}{name}.{key}", value) for name in sorted(names) for key, value in _SWITCHED_OFF.items())
    return replace(git, settings=tuple(settings))


def _is_as_committed(git: Git, row: str) -> bool:
    """Whether ``row`` of ``git status`` is a large file that holds the content its pointer in the index names."""
    status, path = row[:2], row[3:]
    return status == " M" and is_content_of(git.output("cat-file", "blob", f":{path}"), git.directory / path)


def _submodules(git: Git) -> list[Path]:
    """Return the folders of the submodules that are checked out."""
    links = (row.partition("\t")[2] for row in git.listed("ls-files", "--stage", "-z") if row.startswith(_GITLINK))
    return [git.directory / path for path in links if (git.directory / path / ".git").exists()]
