"""Inside a commit: its hunks applied to its parent in any choice, in the disposable clone, never in the repository."""

from __future__ import annotations

import ast
import hashlib
import shlex
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from oomscope.bisect.changes.change_set import ChangeSet
from oomscope.bisect.changes.missing_names import missing_name, needs_by_name
from oomscope.bisect.results.result import KeyChange
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.search.deltas import Changes, grouped
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.git import Git
from oomscope.bisect.vcs.patches import Hunk, applied, compose, parse_patch
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.errors import GitError
from oomscope.units import Bytes

_SHOWN = 6
DIFF: Final = ("--patch", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--unified=3")


@dataclass(frozen=True)
class Hunks(ChangeSet):
    """The states between a commit and the one before it, as a harness sees them.

    Args:
        repository: where both are.
        subject: how a commit is measured.
        before: the last good commit.
        after: the first bad one.
        held: a path that is the same in all states, whatever the commit did there.
    """

    repository: Repository
    subject: Subject
    before: Commit
    after: Commit
    held: str | None = None
    _parsed: dict[tuple[str, Changes], bool] = field(default_factory=dict)
    _needs: dict[int, Changes] = field(default_factory=dict)
    """The hunks that each needs, as failed runs have shown."""

    @property
    def ends(self) -> tuple[str, str]:
        """The commit before, and the commit."""
        return self.before.title, self.after.title

    @cached_property
    def hunks(self) -> tuple[Hunk, ...]:
        """The pieces of the change: files that came first, files that went last, since code uses what is there.

        Raises:
            GitError: a commit's files are missing.
        """
        patch = self.repository.trusted_git.output("diff-tree", *DIFF, self.before.hash, self.after.hash, "--")
        return tuple(sorted((hunk for hunk in parse_patch(patch) if hunk.path != self.held), key=_rank))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The names of the hunks."""
        return tuple(hunk.name for hunk in self.hunks)

    def called(self, changes: Changes) -> str:
        """Return ``changes`` by number, or only how many they are where that is shorter."""
        return numbered(sorted(changes), len(self.hunks))

    def units(self) -> list[Changes]:
        """Return each hunk by itself, but for those that were seen to need each other."""
        return grouped([self._needs.get(change, frozenset()) for change in range(len(self.hunks))])

    def files(self) -> list[Changes]:
        """Return the hunks of each file as one unit, but for files that were seen to need each other."""
        numbers = {path: place for place, path in enumerate(dict.fromkeys(hunk.path for hunk in self.hunks))}
        file_of = [numbers[hunk.path] for hunk in self.hunks]
        needs = [set[int]() for _ in numbers]
        for change, needed in self._needs.items():
            needs[file_of[change]].update(file_of[other] for other in needed)
        return [
            frozenset(change for change, file in enumerate(file_of) if file in group)
            for group in grouped([frozenset(each) for each in needs])
        ]

    def learn(self, changes: Changes, reason: str, ran: Iterable[Changes]) -> bool:
        """Learn from a run with ``changes`` that failed for ``reason``; return whether that rules ``changes`` out.

        What a hunk did without in one of the states that ``ran``, it does not need.
        """
        missing = missing_name(reason)
        if missing is None:
            return False
        new = needs_by_name(self.hunks, missing, self._sources)
        for state in ran:
            new |= {change: new[change] & state for change in state & new.keys()}
        if all(needed <= changes for change, needed in new.items() if change in changes):
            return False
        for change, needed in new.items():
            self._needs[change] = self._needs.get(change, frozenset()) | needed
        return True

    def needed_by_name(self) -> Changes:
        """Return the hunks that others need for a name that failed runs lacked."""
        return frozenset().union(*self._needs.values())

    def forget(self, changes: Changes) -> None:
        """Forget that any hunk needs ``changes``: a run without them has shown that none does."""
        self._needs.update({change: needed - changes for change, needed in self._needs.items()})

    def is_valid(self, changes: Changes) -> bool:
        """Whether nothing is missing that failed runs have named, and every Python file parses that does with all."""
        if any(not self._needs.get(change, changes) <= changes for change in changes):
            return False
        return self.parses(changes)

    def parses(self, changes: Changes) -> bool:
        """Whether every Python file parses that does with all hunks."""
        return all(self._parses_with(path, changes & own) for path, (_, own) in self._python.items())

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the hunk as a change: absent before, there after."""
        return KeyChange(key=key, good=False, bad=True, delta=delta)

    def experiment(self, changes: Changes, _on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return how the commit before with ``changes`` applied is measured."""
        if changes == frozenset(range(len(self.hunks))):
            return self.subject.experiment(self.after)
        base = self.subject.experiment(self.before)
        if not changes or isinstance(base, Untestable):
            return base
        patch = self.patch(changes)
        return base.edited(hashlib.sha256(patch).hexdigest(), lambda directory: apply_patch(directory, patch))

    def commands(self, changes: Changes, _on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return the commands that probe the commit before, with the hunks to be applied named in between."""
        clone, checkout, *then = self.subject.commands(self.before)
        if not changes:
            return (clone, checkout, *then)
        named = ", ".join(self.hunks[change].name for change in sorted(changes))
        return (clone, checkout, f"# apply {shlex.quote(named)} of {self.after.short}", *then)

    def patch(self, changes: Changes) -> bytes:
        """Return ``changes`` as a patch that git applies to the commit before."""
        return compose(sorted((self.hunks[change] for change in changes), key=lambda hunk: (hunk.path, hunk.old_start)))

    @cached_property
    def _python(self) -> dict[str, tuple[bytes, Changes]]:
        """The content before and the hunks of each Python file that parses before and after the whole commit."""
        found = {}
        for path in {hunk.path for hunk in self.hunks if hunk.path.endswith(".py") and not hunk.is_whole}:
            content = self.repository.read_file(self.before, path) or b""
            own = frozenset(number for number, hunk in enumerate(self.hunks) if hunk.path == path)
            if _parses(content) and _parses(self._made(content, own)):
                found[path] = (content, own)
        return found

    def _sources(self, path: str) -> tuple[bytes | None, bytes | None]:
        return self.repository.read_file(self.before, path), self.repository.read_file(self.after, path)

    def _parses_with(self, path: str, changes: Changes) -> bool:
        if (path, changes) not in self._parsed:
            self._parsed[path, changes] = _parses(self._made(self._python[path][0], changes))
        return self._parsed[path, changes]

    def _made(self, content: bytes, changes: Changes) -> bytes:
        return applied(content, sorted((self.hunks[change] for change in changes), key=lambda hunk: hunk.old_start))


def apply_patch(directory: Path, patch: bytes) -> None:
    """Apply ``patch`` to the files in ``directory``, the root of a clone.

    Raises:
        GitError: it does not apply.
    """
    git = Git(directory, (directory, directory / ".git"))
    try:
        git.output("apply", "--whitespace=nowarn", "--binary", "-", stdin=patch)
    except GitError as error:
        remedy = "leave --hunks out: the commit is named all the same"
        message = f"the hunks do not apply by themselves: {error.message}"
        raise GitError(message, where=str(directory), remedy=remedy) from None


def numbered(changes: Sequence[int], total: int) -> str:
    """Return some of ``total`` hunks, which are counted from 0 here and from 1 for people, in a few words."""
    if len(changes) == total:
        return f"all {total} hunks"
    if not changes:
        return "no hunk"
    if len(changes) > _SHOWN:
        return f"{len(changes)} of {total} hunks"
    return f"{'hunk' if len(changes) == 1 else 'hunks'} {', '.join(str(change + 1) for change in changes)} of {total}"


def _rank(hunk: Hunk) -> int:
    if hunk.is_whole and b"\nnew file mode " in hunk.header:
        return 0
    return 2 if hunk.is_whole and b"\ndeleted file mode " in hunk.header else 1


def _parses(source: bytes) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True
