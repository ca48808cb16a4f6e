"""Small repairs that some commits need before they can be measured: a patch, or a command run in their checkout.

``RANGE: PATCH-FILE or COMMAND``. A repair changes the disposable clone alone, which the next commit finds clean.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oomscope.bisect.checkouts import editing
from oomscope.bisect.commits import Repository
from oomscope.bisect.git import Git
from oomscope.bisect.headers import Commit
from oomscope.bisect.history import reading
from oomscope.bisect.workplace import Workplace, in_checkout
from oomscope.errors import GitError, TargetError, UsageError

NAME = "--fixup"
EVERYWHERE = "*"
_PATCH_SUFFIXES = {".patch", ".diff"}
_APPLY = ("apply", "--whitespace=nowarn")
_PREIMAGES = re.compile(rb"^index ([0-9a-f]+)\.\.", re.MULTILINE)
_REMEDY = "write 'RANGE: PATCH-FILE' or 'RANGE: COMMAND', where RANGE is A..B, one revision or *"


@dataclass(frozen=True, kw_only=True)
class Fixup:
    """One repair as the user wrote it."""

    range: str
    """``A..B``, a revision, or ``*`` for every commit."""
    command: str = ""
    """For ``sh``, run in the root of the checkout; empty where there is a patch."""
    patch: bytes = b""
    """What ``git apply`` takes; empty where there is a command."""
    file: Path | None = None
    """Where the patch lies."""

    @classmethod
    def parse(cls, text: str) -> Fixup:
        """Return the repair that ``text`` names; a patch file is read here.

        What ends in ``.patch`` or ``.diff``, and any file that exists, is a patch; all else is a command.

        Raises:
            UsageError: there is no range or no repair, or the patch cannot be read.
        """
        where, colon, repair = (part.strip() for part in text.partition(":"))
        if not (colon and where and repair):
            raise UsageError(f"{text!r} is no repair", where=NAME, remedy=_REMEDY)
        file = Path(repair).expanduser()
        if not (file.suffix in _PATCH_SUFFIXES or _is_file(file)):
            return cls(range=where, command=repair)
        try:
            return cls(range=where, patch=file.read_bytes(), file=file.absolute())
        except OSError as error:
            why = "no such patch file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise UsageError(why, where=f"{NAME} {repair}", remedy=_REMEDY) from None

    @property
    def name(self) -> str:
        """Tells what it does from all others: part of what a result is kept under."""
        return hashlib.sha256(self.patch or self.command.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.range}: {self.file or self.command}"

    def apply(self, place: Workplace, timeout_s: float) -> None:
        """Repair the checkout at ``place``.

        A patch that does not apply as it is is merged three ways where the repository has the files that it was made
        from; so it leaves a commit alone that has it already.

        Raises:
            TargetError: the patch does not apply.
            CommandError: the command failed, or took longer than ``timeout_s`` seconds.
            StoppedError: nobody wants the result any more.
            OutOfTimeError: the deadline of the search has passed.
        """
        if not self.patch:
            place.run(self.command, name=f"{NAME} {self}", timeout_s=timeout_s)
            return
        git = editing(place.directory)
        try:
            git.output(*_APPLY, "-", stdin=self.patch)
        except GitError as error:
            try:
                _merge(git, self.patch)
            except GitError:
                raise TargetError(
                    f"does not apply: {error.message}",
                    where=f"{NAME} {self}",
                    remedy="narrow its range, or give another patch for these commits",
                ) from None

    def shell(self, directory: str) -> str:
        """Return the shell command that does this to the checkout ``directory``."""
        if self.patch:
            return shlex.join(["git", "-C", directory, "apply", "--3way", str(self.file)])
        return in_checkout(directory, self.command)


@dataclass(frozen=True)
class Fixups:
    """Repairs and the commits that get them: in the order in which they were given."""

    chosen: tuple[tuple[Fixup, frozenset[str] | None], ...]
    """Each with the hashes of its commits; None for all."""

    @classmethod
    def resolve(cls, fixups: Sequence[Fixup], repository: Repository) -> Fixups:
        """Return ``fixups`` with what their ranges mean in ``repository``.

        Raises:
            GitError: there is no such revision.
            UsageError: a range holds no commit, or a file is no patch.
        """
        for fixup in fixups:
            if fixup.file is not None:
                _check_patch(fixup, repository)
        return cls(tuple((fixup, _commits(fixup, repository)) for fixup in fixups))

    def of(self, commit: Commit) -> tuple[Fixup, ...]:
        """Return the repairs of ``commit``."""
        return tuple(fixup for fixup, commits in self.chosen if commits is None or commit.hash in commits)


def _merge(git: Git, patch: bytes) -> None:
    """Apply ``patch`` three ways: what it was made from, what it makes of that, and what lies there.

    Raises:
        GitError: they conflict, or the repository does not have what it was made from.
    """
    git.output("add", "--all", "--force")  # a merge starts from the index
    for name in _PREIMAGES.findall(patch):
        with contextlib.suppress(GitError):  # a file that comes with the patch, or one that was never committed
            content = replace(git, objects=None).output("cat-file", "blob", name.decode())
            git.output("hash-object", "-w", "--stdin", stdin=content)
    git.output(*_APPLY, "--3way", "-", stdin=patch)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a command may be longer than a file name can be
        return False


def _check_patch(fixup: Fixup, repository: Repository) -> None:
    git = Git(repository.common, (repository.common, repository.path))
    try:
        git.output("apply", "--numstat", "-", stdin=fixup.patch)
    except GitError as error:
        raise UsageError(
            f"is no patch ({error.message})",
            where=f"{NAME} {fixup}",
            remedy=f"give the output of git diff; to run the file write 'sh {fixup.file}'",
        ) from None


def _commits(fixup: Fixup, repository: Repository) -> frozenset[str] | None:
    if fixup.range == EVERYWHERE:
        return None
    first, dots, last = fixup.range.partition("..")
    if not dots:
        return frozenset({repository.resolve(fixup.range).hash})
    if last.startswith("."):
        raise UsageError("names a symmetric difference", where=f"{NAME} {fixup}", remedy=_REMEDY)
    after, until = repository.resolve(first or "HEAD"), repository.resolve(last or "HEAD")
    with reading(repository.common) as repo:
        names = repo.git.rev_list(f"{after.hash}..{until.hash}").split()
    if not names:
        raise UsageError("no commit lies in this range", where=f"{NAME} {fixup}", remedy=_REMEDY)
    return frozenset(names)
