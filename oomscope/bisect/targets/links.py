"""What a program reads and git does not track: data, ``.env``, built extensions. Each checkout links to the user's.

A link is a symbolic one, so that terabytes cost nothing. The program is meant to read there; where it wrote, the search
remarks on it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from oomscope.bisect.run.identity import digest_of
from oomscope.bisect.run.workplace import Workplace
from oomscope.bisect.vcs.checkouts import spend
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import TargetError, UsageError
from oomscope.files import real_path

NAME = "--link"
_MOST_FILES = 10_000
"""Files of a folder whose size and time are compared."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A file or folder of the user's checkout that every disposable checkout links to."""

    path: PurePosixPath
    """Where it lies, from the root of the repository."""
    target: Path
    """The user's own."""

    @classmethod
    def resolve(cls, text: str, repository: Repository) -> Link:
        """Return the link that ``text`` names, a path from the folder that is measured.

        Raises:
            UsageError: nothing lies there, or it lies outside the repository.
            GitError: git cannot say where the folder lies.
        """
        target = repository.path / text
        if not target.exists():
            raise UsageError("no such file or folder", where=f"{NAME} {text}", remedy="name what lies in your checkout")
        root = real_path(repository.path)
        for _ in PurePosixPath(repository.inside).parts:
            root = root.parent
        place = Path(os.path.normpath(real_path(target.parent) / target.name))
        if not place.is_relative_to(root) or place == root:
            raise UsageError("lies outside the repository", where=f"{NAME} {text}", remedy="name a path inside it")
        return cls(path=PurePosixPath(place.relative_to(root)), target=place)

    def apply(self, workplace: Workplace) -> None:
        """Lay the link into a checkout; a commit that has the path keeps its own.

        Raises:
            TargetError: a file of the commit is in the way.
        """
        place = workplace.directory / self.path
        if os.path.lexists(place):
            return
        spend(workplace.directory)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(self.target)
        except OSError as error:
            raise TargetError(
                f"cannot be linked: {error.strerror}",
                where=f"{NAME} {self.path}",
                remedy="the commit has a file where the path needs a folder; link another path",
            ) from None

    def shell(self, directory: str) -> str:
        """Return the shell command that does this to the checkout ``directory``."""
        place = PurePosixPath(directory) / self.path
        folder = shlex.join(["mkdir", "-p", str(place.parent)])
        return f"{folder} && {shlex.join(['ln', '-s', str(self.target), str(place)])}"

    def state(self) -> str:
        """Tell what lies there from what lay there before: by sizes and times of up to 10,000 files."""
        return digest_of({"path": str(self.path), "files": list(self._files())})

    def _files(self) -> Iterator[tuple[str, int, int]]:
        for number, path in enumerate(self._paths()):
            if number == _MOST_FILES:
                return
            try:
                seen = path.stat()
            except OSError:
                continue
            yield str(path.relative_to(self.target)), seen.st_size, seen.st_mtime_ns

    def _paths(self) -> Iterator[Path]:
        yield self.target
        for folder, folders, names in os.walk(self.target):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(names))


def written_to(links: Sequence[Link], before: Sequence[str]) -> list[str]:
    """Return the paths of ``links`` whose state is no longer that ``before``."""
    return [str(link.path) for link, state in zip(links, before, strict=True) if link.state() != state]
