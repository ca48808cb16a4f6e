"""What of a commit is measured: the configuration file in it, or its code through a harness, an entry or a command."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.identity import Content
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.vcs.checkouts import Checkout, submodules_at_hand
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.bisect.vcs.source_text import Source
from oomscope.errors import ConfigError, GitError, UsageError
from oomscope.printable import quoted
from oomscope.probe.job import CheckoutTarget, HarnessTarget, bundled_job, checkout_job
from oomscope.probe.machine.checks import check_card
from oomscope.probe.ranks import chosen_ranks
from oomscope.probe.targets.recipes import check_target

if TYPE_CHECKING:
    from oomscope.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class ConfigInRepo:
    """The bundled transformer under the configuration file that lies at ``path`` in each commit."""

    path: str
    """Path from the root of the repository, with forward slashes."""
    dialect: str | None = None
    """Dialect of its names (``megatron``, ``bridge``, ``nemo``); None for oomscope's own."""
    overrides: tuple[str, ...] = ()
    """Overrides ``section.key=value``, on top of every commit's file."""


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """Code that is laid out commit by commit."""

    target: CheckoutTarget
    """Target that drives the code; the checkout that it names does not matter."""
    settings: Config
    """Configuration whose sections allocator, device and probe say how to measure."""
    overrides: tuple[str, ...] = ()
    """The settings as ``section.key=value``, for the commands that repeat a probe."""

    def target_at(self, repo: str) -> CheckoutTarget:
        """Return what is measured of the checkout ``repo``."""
        return self.target.at(repo)

    def content(self, tree: str) -> Content:
        """Return what the target is made of in a checkout of ``tree``: with a harness also what that imports."""
        if isinstance(self.target, HarnessTarget):
            return Content.of(tree, Path(self.target.harness))
        return Content(tree=tree)


def own_code_of(target: CheckoutTarget, settings: Config, overrides: tuple[str, ...] = ()) -> OwnCode:
    """Return ``target``, whichever checkout it names, as what is measured of each commit."""
    if isinstance(target, HarnessTarget):
        target = replace(target, harness=str(Path(target.harness).absolute()))
    return OwnCode(target=target.at(""), settings=settings, overrides=overrides)


class Subject(ABC):
    """What of a commit is measured."""

    def check(self, _end: Commit) -> None:
        """Refuse overrides that ``end`` cannot be measured with, though it can be without them.

        Raises:
            ConfigError: the overrides are wrong.
        """
        return

    @abstractmethod
    def contents(self, commits: Sequence[Commit]) -> list[str]:
        """Return for each commit a name of all that is measured of it: neighbours with one name measure the same."""

    @abstractmethod
    def experiment(self, commit: Commit) -> Experiment | Untestable:
        """Return how ``commit`` is measured, or why it cannot be."""

    def config(self, _commit: Commit) -> Config | None:
        """Return the bundled transformer's configuration in ``commit``; None where there is none, or it is invalid."""
        return None

    @abstractmethod
    def source(self, commit: Commit) -> Source:
        """Return the code that is measured of ``commit``."""

    @abstractmethod
    def commands(self, commit: Commit, root: Path | None = None) -> tuple[str, ...]:
        """Return shell commands that repeat the probe of ``commit``.

        With ``root``, the top of a checkout, they are run there, and hold in every checkout.
        """


def subject_of(
    choice: ConfigInRepo | OwnCode, repository: Repository, checkout: Path
) -> ConfigSubject | OwnCodeSubject:
    """Return the subject that ``choice`` names in ``repository``, with ``checkout`` as the place for clones.

    Raises:
        UsageError: the path leads out of the repository.
        HarnessError: the harness, entry or command is invalid.
    """
    if isinstance(choice, ConfigInRepo):
        return ConfigSubject(repository, path_in_repo(choice.path), choice.overrides, choice.dialect)
    check_target(choice.target_at(""))
    return OwnCodeSubject(repository, choice, Checkout(repository, checkout), repository.inside)


def path_in_repo(path: str) -> str:
    """Return the path of a configuration as git names it inside a commit.

    Raises:
        UsageError: it is absolute, leads outside, or holds control characters.
    """
    normal = os.path.normpath(path)
    outside = PurePosixPath(normal).is_absolute() or normal.startswith("..") or normal == "."
    if outside or any(ord(letter) < 32 for letter in path):
        raise UsageError(
            "is not a path inside a repository",
            where=f"--config {quoted(path)}",
            remedy="give it from the repository's root",
        )
    return normal


def seen_from(root: Path | None, path: Path) -> str:
    """Return ``path`` for a command that is run in ``root``.

    What lies in it, or beside it, has a path that holds in other checkouts as well; all else is whole.
    """
    if root is None:
        return str(path.absolute())
    near = root if root.parent == Path(root.anchor) else root.parent
    return os.path.relpath(path, root) if path.is_relative_to(near) else str(path.absolute())


def place_of(repository: Repository, commit: Commit, root: Path | None) -> str:
    """Return the folder in which commands lay ``commit`` out."""
    return f"{repository.name}-{commit.short}" if root is None else f"../oomscope-{commit.short}"


@dataclass(frozen=True)
class ConfigSubject(Subject):
    """The bundled transformer under each commit's configuration file, which is read without a checkout."""

    repository: Repository
    path: str
    overrides: tuple[str, ...]
    dialect: str | None = None

    def check(self, end: Commit) -> None:
        """Refuse overrides that make a valid configuration of ``end`` an invalid one."""
        without = replace(self, overrides=())
        if self.config(end) is None and without.config(end) is not None:
            self.read(end)

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        """Return the hash of the file in each commit; empty where there is none."""
        return self.repository.objects_at(commits, self.path)

    def experiment(self, commit: Commit) -> Experiment | Untestable:
        """Return the job of the commit's configuration."""
        try:
            loaded = self.read(commit)
        except (ConfigError, GitError) as error:
            return Untestable(str(error))
        return Experiment(job=bundled_job(loaded), ranks=tuple(chosen_ranks(loaded.probe.rank, loaded)))

    def config(self, commit: Commit) -> Config | None:
        """Return the commit's configuration, overrides included."""
        try:
            return self.read(commit)
        except (ConfigError, GitError):
            return None

    def source(self, _commit: Commit) -> Source:
        """Return oomscope's own code, which no commit changes."""
        return Source(all_fixed=True)

    def commands(self, commit: Commit, root: Path | None = None) -> tuple[str, ...]:
        """Return commands that write the commit's file beside the repository's own and probe it.

        With ``root``, the top of a checkout, they are run there, and hold in every checkout.
        """
        dialect = ["--from", self.dialect] if self.dialect else []
        probe = ["oomscope", "probe", *dialect, self.written(commit), *self.overrides]
        return self.write(commit, root), shlex.join(probe)

    def written(self, commit: Commit) -> str:
        """Return the name under which :meth:`write` writes the commit's file."""
        path = PurePosixPath(self.path)
        return f"{path.stem}-{commit.short}{path.suffix if self.dialect else '.yaml'}"

    def write(self, commit: Commit, root: Path | None = None) -> str:
        """Return the command that writes the commit's file beside the current directory's own."""
        repository = seen_from(root, self.repository.top)
        where = [] if repository == "." else ["-C", repository]
        show = ["git", *where, "show", f"{commit.hash}:{self.path}"]
        return f"{shlex.join(show)} > {shlex.quote(self.written(commit))}"

    def read(self, commit: Commit) -> Config:
        """Return the commit's configuration, overrides included.

        Raises:
            ConfigError: it is wrong.
            GitError: there is no such file.
        """
        from oomscope.config.importers.load import load_in

        text = self.repository.read_file(commit, self.path)
        if text is None:
            raise GitError(f"no file {self.path} in this commit")
        loaded = load_in(self.dialect, text, source=f"{commit.short}:{self.path}", overrides=self.overrides)
        check_card(loaded)
        return loaded.config


@dataclass(frozen=True)
class OwnCodeSubject(Subject):
    """Each commit's code, laid out in a disposable clone.

    Args:
        repository: where the commits are.
        choice: what drives their code.
        checkout: where they are laid out.
        folder: which folder of them is measured, from the root; empty for all of them.
    """

    repository: Repository
    choice: OwnCode
    checkout: Checkout
    folder: str = ""

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        """Return the tree of each commit."""
        return [commit.tree for commit in commits]

    def experiment(self, commit: Commit) -> Experiment:
        """Return the job of the commit's checkout."""
        settings = self.choice.settings
        return Experiment(
            job=checkout_job(replace(self.choice.target_at(str(self.checkout.path)), folder=self.folder), settings),
            ranks=tuple(chosen_ranks(settings.probe.rank, settings)),
            content=self.choice.content(commit.tree),
            lay_out=lambda place: replace(self.checkout, path=place).show(commit),
        )

    def source(self, commit: Commit) -> Source:
        """Return the files of the commit."""
        return Source(self.repository, commit)

    def commands(self, commit: Commit, root: Path | None = None) -> tuple[str, ...]:
        """Return commands that lay the commit out in the current directory and probe it.

        With ``root``, the top of a checkout, they are run there, hold in every checkout, and lay it out beside it.
        """
        place = place_of(self.repository, commit, root)
        repository = seen_from(root, self.repository.top)
        clone = shlex.join(["git", "clone", "--shared", "--no-checkout", repository, place])
        checkout = ["git", "-C", place, "checkout", "--detach", commit.hash]
        target = replace(self.choice.target_at(place), folder=self.folder)
        if root is not None and isinstance(target, HarnessTarget):
            target = replace(target, harness=seen_from(root, Path(target.harness)))
        probe = ["oomscope", "probe", *target.words(), "--repo", str(target.place), *self.choice.overrides]
        once = clone if root is None else f"test -d {place} || {clone}"  # several cases may share one commit at fault
        return once, shlex.join(checkout), *self._submodules(commit, place, root), shlex.join(probe)

    def _submodules(self, commit: Commit, place: str, root: Path | None) -> list[str]:
        """Return commands that lay the submodules of ``commit`` out as a probe does: from the repository's own copies.

        With those in place git fetches nothing, wherever the submodules come from.
        """
        copies = submodules_at_hand(self.repository, commit)
        if not copies:
            return []
        copy = shlex.join(["cp", "-r", seen_from(root, self.repository.common / "modules"), f"{place}/.git/"])
        nested = ["--recursive"] if any((source / "modules").is_dir() for source in copies.values()) else []
        update = ["git", "-C", place, "submodule", "update", "--init", *nested, "--", *copies]
        return [copy if root is None else f"test -d {place}/.git/modules || {copy}", shlex.join(update)]


@dataclass(frozen=True)
class ChangedSubject(Subject):
    """A subject whose checkouts are changed before they are measured; by default in no way."""

    subject: Subject
    repository: Repository

    def check(self, end: Commit) -> None:
        """Check ``end`` as the subject does."""
        self.subject.check(end)

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        """Return the names that the subject has for the commits."""
        return self.subject.contents(commits)

    def source(self, commit: Commit) -> Source:
        """Return the code that the subject has for ``commit``."""
        return self.subject.source(commit)
