"""Files that Git LFS keeps outside the objects: their content where the repository has it, else only the pointer.

git-lfs itself is not called: it would be a filter that a repository sets, and may fetch. A pointer names its content by
hash, and the content lies under ``lfs/objects`` of git's own directory (git-lfs, docs/spec.md).
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from oomscope.bisect.absent_files import named_few
from oomscope.bisect.git import Git

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:.+\n)*?oid sha256:([0-9a-f]{64})\nsize (\d+)\n"
)
_LONGEST_POINTER = 1024
"""Bytes; the specification has pointers stay below."""


def lay_out_large_files(git: Git, common: Path) -> list[str]:
    """Put the content of large files in place of their pointers, and name in one line those whose content is not there.

    Args:
        git: git in a checkout.
        common: git's own directory of the user's repository, which is only read.
    """
    tracked = git.listed("ls-files", "-z", "--", ":(attr:filter=lfs)")
    missing = [name for name in tracked if not _lay_out(git.directory / name, common)]
    if not missing:
        return []
    what, named = named_few(
        missing, "file is a Git LFS pointer, not its content", "files are Git LFS pointers, not their content"
    )
    return [f"{what} ({named})"]


def is_content_of(pointer: bytes, file: Path) -> bool:
    """Return whether ``pointer`` is one, and ``file`` holds the content that it names."""
    found = _POINTER.fullmatch(pointer)
    if found is None or file.is_symlink() or not file.is_file() or file.stat().st_size != int(found[2]):
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == found[1].decode()


def _lay_out(file: Path, common: Path) -> bool:
    """Return whether ``file`` has its content now; what is no pointer is its content."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size >= _LONGEST_POINTER:
        return True
    pointer = _POINTER.fullmatch(file.read_bytes())
    if pointer is None:
        return True
    name = pointer[1].decode()
    content = common / "lfs" / "objects" / name[:2] / name[2:4] / name
    if not content.is_file() or content.stat().st_size != int(pointer[2]):
        return False
    shutil.copyfile(content, file)  # a copy: a probe may write to it
    return True
