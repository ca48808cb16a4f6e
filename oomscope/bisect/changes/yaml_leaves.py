"""Each commit's code with a configuration file of another commit, or with some leaves of two files (YAML or JSON)."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from oomscope.bisect.changes.change_set import ChangeSet, names
from oomscope.bisect.results.result import KeyChange, absent_side
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.targets.subjects import ChangedSubject, Subject
from oomscope.bisect.vcs.git import NO_ROOM, no_room
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.errors import GitError, InputError
from oomscope.files import real_path
from oomscope.units import Bytes

_ABSENT = object()
_REMEDY = "name another --config"
Leaves = dict[tuple[str, ...], Any]
"""The leaves of a document by the keys that lead to each."""


@dataclass(frozen=True)
class WithConfigOf(ChangedSubject):
    """A subject in whose commits the file at one path is as in another commit."""

    path: str
    holder: Commit

    def experiment(self, commit: Commit) -> Experiment | Untestable:
        """Return how ``commit`` is measured with the file in place of its own."""
        try:
            content = file_of(self.repository, self.holder, self.path)
            if self.repository.read_file(commit, self.path) == content:
                return self.subject.experiment(commit)
        except GitError as error:
            return Untestable(str(error))
        return with_file(self.subject.experiment(commit), self.path, content)

    def commands(self, commit: Commit, _root: Path | None = None) -> tuple[str, ...]:
        """Return commands that lay the commit out, put the file into it and probe it."""
        clone, checkout, *then = self.subject.commands(commit)
        return (clone, checkout, _show(self.repository, self.holder, self.path, commit), *then)


@dataclass(frozen=True)
class ConfigLeaves(ChangeSet):
    """One commit's code with combinations of the file at one path as it stood at two commits.

    A file that is neither YAML nor JSON, or whose leaves are the same, is one change by itself.
    """

    subject: Subject
    repository: Repository
    path: str
    code: Commit
    before: Commit
    after: Commit

    @property
    def ends(self) -> tuple[str, str]:
        """Both files."""
        return f"{self.before.short}:{self.path}", f"{self.after.short}:{self.path}"

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The leaves that differ, dotted; else the path of the file.

        Raises:
            GitError: the file is not there at one of the commits.
        """
        return tuple(".".join(place) for place in self._places) or (self.path,)

    def is_valid(self, changes: Changes) -> bool:
        """Whether a document can have these leaves."""
        try:
            return changes in self._ends or bool(self._mixed(changes))
        except InputError:
            return False

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the leaf with both its values, None where one document lacks it; of a file both commits."""
        if not self._places:
            return KeyChange(key=key, good=self.before.short, bad=self.after.short, delta=delta)
        place = self._places[self.keys.index(key)]
        low, high = self._documents
        good, bad = (_as_json(leaves.get(place)) for leaves in (low, high))
        absent_from = absent_side(in_good=place in low, in_bad=place in high)
        return KeyChange(key=key, good=good, bad=bad, delta=delta, absent_from=absent_from)

    def experiment(self, changes: Changes, _on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return how the code is measured with ``changes`` made in the good file."""
        if (source := self._ends.get(changes)) is not None:
            return WithConfigOf(self.subject, self.repository, self.path, source).experiment(self.code)
        return with_file(self.subject.experiment(self.code), self.path, self._mixed(changes))

    def commands(self, changes: Changes, _on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return commands that lay the code out with the good file, and a comment with the changes to make."""
        clone, checkout, *then = self.subject.commands(self.code)
        show = _show(self.repository, self.before, self.path, self.code)
        made = [self.change(key) for key in names(self, changes)]
        kept = [f"{each.key}={each.texts[1]}" for each in made if each.absent_from != "bad"]
        removed = [each.key for each in made if each.absent_from == "bad"]
        note = [f"# set {shlex.quote(', '.join(kept))} in {self.path}"] if kept else []
        note += [f"# remove {shlex.quote(', '.join(removed))} from {self.path}"] if removed else []
        return (clone, checkout, show, *note, *then)

    @property
    def _ends(self) -> dict[Changes, Commit]:
        return {frozenset(): self.before, frozenset(range(len(self.keys))): self.after}

    @cached_property
    def _documents(self) -> tuple[Leaves, Leaves]:
        good, bad = (file_of(self.repository, commit, self.path) for commit in (self.before, self.after))
        try:
            return read_leaves(good, self.good), read_leaves(bad, self.bad)
        except InputError:
            return {}, {}

    @cached_property
    def _places(self) -> tuple[tuple[str, ...], ...]:
        return differing(*self._documents)

    def _mixed(self, changes: Changes) -> bytes:
        return mixed(*self._documents, {self._places[change] for change in changes}, self.path)


def file_of(repository: Repository, commit: Commit, path: str) -> bytes:
    """Return the file at ``path`` as it stands in ``commit``.

    Raises:
        GitError: there is none.
    """
    content = repository.read_file(commit, path)
    if content is None:
        raise GitError(f"no file {path} in this commit", where=commit.short, remedy="give --config PATH-IN-REPO")
    return content


def with_file(experiment: Experiment | Untestable, path: str, content: bytes) -> Experiment | Untestable:
    """Return ``experiment`` with ``content`` written to ``path`` in its checkout."""
    if isinstance(experiment, Untestable):
        return experiment

    def write(directory: Path) -> None:
        file = directory / path
        if not real_path(file).is_relative_to(real_path(directory)):
            raise GitError("points outside the checkout", where=path, remedy="name a file inside the checkout")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise no_room(f"{path} cannot be written", directory) from None
            remedy = "see that no folder of the commit has this name"
            raise GitError(f"cannot be written: {error.strerror}", where=path, remedy=remedy) from None

    return experiment.edited(f"{path}:{hashlib.sha256(content).hexdigest()}", write)


def _show(repository: Repository, source: Commit, path: str, code: Commit) -> str:
    show = ["git", "-C", str(repository.path), "show", f"{source.hash}:{path}"]
    return f"{shlex.join(show)} > {shlex.quote(f'{repository.name}-{code.short}/{path}')}"


def read_leaves(content: bytes, path: str) -> Leaves:
    """Return the leaves of a document; a list is a leaf, and so is an empty mapping.

    Raises:
        InputError: it is neither YAML nor JSON with a mapping at the top, a key is no text, or an alias is cyclic.
    """
    import yaml

    try:
        document = json.loads(content) if _is_json(path) else yaml.safe_load(content)
        if not isinstance(document, Mapping):
            raise InputError("is not a mapping", where=path, remedy=_REMEDY)
        _as_json(document)
        return dict(_leaves(document, (), path))
    except RecursionError:  # YAML allows a: &a [*a]
        raise InputError(
            "an alias refers to a value that contains it", where=path, remedy="replace the alias by its value"
        ) from None
    except (ValueError, yaml.YAMLError) as error:  # a wrong encoding is a ValueError, too
        first = str(error).partition("\n")[0]
        raise InputError(f"is neither YAML nor JSON: {first}", where=path, remedy=_REMEDY) from None


def differing(good: Leaves, bad: Leaves) -> tuple[tuple[str, ...], ...]:
    """Return the keys of the leaves that differ or that one document lacks, in the documents' order."""
    places = dict.fromkeys((*good, *bad))
    return tuple(place for place in places if good.get(place, _ABSENT) != bad.get(place, _ABSENT))


def mixed(good: Leaves, bad: Leaves, changed: set[tuple[str, ...]], path: str) -> bytes:
    """Return the good document with the leaves ``changed`` as in the bad one, in the format that ``path`` ends in.

    Raises:
        InputError: a leaf of one document lies where the other has a mapping, and the result has both.
    """
    import yaml

    document: dict[str, Any] = {}
    for place in dict.fromkeys((*good, *bad)):
        leaves = bad if place in changed else good
        if place not in leaves:
            continue
        *above, last = place
        inner: Any = document
        for key in above:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner
        if not isinstance(inner, dict) or inner.get(last):
            raise InputError(f"{'.'.join(place)} is a leaf and a mapping", where=path, remedy=_REMEDY)
        inner[last] = leaves[place]
    if _is_json(path):
        return f"{json.dumps(document, indent=2)}\n".encode()
    return bytes(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, encoding="utf-8"))


def _leaves(document: Mapping[Any, Any], above: tuple[str, ...], path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in document.items():
        if not isinstance(key, str):
            raise InputError(f"the key {key!r} is not text", where=path, remedy=_REMEDY)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key), path)
        else:
            yield (*above, key), value


def _as_json(value: Any) -> Any:
    """Return a leaf as JSON has it: what YAML has beyond that (dates, sets, bytes) as text."""
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _as_json(part) for key, part in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _is_json(path: str) -> bool:
    """Whether ``path`` names JSON: to YAML some of its numbers and letters mean something else."""
    return PurePosixPath(path).suffix == ".json"
