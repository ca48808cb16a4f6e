"""What a job can name as its target: plain data that crosses the process boundary as JSON and keys the cache.

The bundled transformer is a configuration. All others lie in a checkout (:class:`CheckoutTarget`): whoever lays out
commits, edits their files or keeps results needs to know no more of them than that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self


@dataclass(frozen=True, kw_only=True)
class BundledTarget:
    """The bundled transformer under a validated configuration (``Config.model_dump(mode="json")``)."""

    config: dict[str, Any]
    kind: Literal["bundled"] = "bundled"


@dataclass(frozen=True, kw_only=True)
class CheckoutTarget:
    """Code that lies in a checkout."""

    repo: str
    """Absolute path of the checkout."""
    folder: str = ""
    """From there, with slashes: the folder of it that is measured, as if there were no more; empty for all of it."""

    @property
    def place(self) -> Path:
        """The folder that is measured: code is imported from it, and commands run in it."""
        return Path(self.repo, self.folder)

    def at(self, repo: str) -> Self:
        """Return the same target in another checkout."""
        return replace(self, repo=repo)

    def absolute(self) -> Self:
        """Return the same target by paths that mean the same in any working directory."""
        return self.at(str(Path(self.repo).absolute()))

    def identity(self) -> dict[str, Any]:
        """Return what tells it from others of the same checkout, as JSON values; files outside count by content."""
        return {name: value for name, value in asdict(self).items() if name not in {"repo", "folder"}} | self._inside()

    def _inside(self) -> dict[str, Any]:
        return {"folder": self.folder} if self.folder else {}

    @property
    def outside(self) -> tuple[str, ...]:
        """Absolute paths of the files outside the checkout that drive it."""
        return ()

    @property
    def title(self) -> str:
        """What drives the checkout, for people."""
        raise NotImplementedError

    def words(self) -> tuple[str, ...]:
        """Return the options of ``oomscope probe`` that name it, without the checkout."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HarnessTarget(CheckoutTarget):
    """A harness file that drives a checkout, which is first on ``sys.path`` (and its ``src/`` where there is one)."""

    harness: str
    """Absolute path of the harness file."""
    kind: Literal["harness"] = "harness"

    def absolute(self) -> Self:
        """Return the same target by paths that mean the same in any working directory."""
        return replace(super().absolute(), harness=str(Path(self.harness).absolute()))

    def identity(self) -> dict[str, Any]:
        """Return its kind: where the file lies does not matter."""
        return {"kind": self.kind, **self._inside()}

    @property
    def outside(self) -> tuple[str, ...]:
        """The harness file."""
        return (self.harness,)

    @property
    def title(self) -> str:
        """The name of the harness."""
        return Path(self.harness).name

    def words(self) -> tuple[str, ...]:
        """Return ``--harness FILE``."""
        return ("--harness", self.harness)


@dataclass(frozen=True, kw_only=True)
class EntryTarget(CheckoutTarget):
    """A function of the checkout that is told what a harness's ``setup`` is told, and returns what it returns."""

    entry: str
    """``pkg.module:function``."""
    kind: Literal["entry"] = "entry"

    @property
    def title(self) -> str:
        """The function."""
        return self.entry

    def words(self) -> tuple[str, ...]:
        """Return ``--entry pkg.module:function``."""
        return ("--entry", self.entry)


@dataclass(frozen=True, kw_only=True)
class StartedTarget(CheckoutTarget):
    """A command that is run in the checkout."""

    command: str
    """Its words, quoted as for a shell; no shell is started."""

    @property
    def title(self) -> str:
        """The command."""
        return self.command


@dataclass(frozen=True, kw_only=True)
class ProgramTarget(StartedTarget):
    """A training program that is started as it is, and recorded in each of its processes that imports torch."""

    kind: Literal["program"] = "program"

    def words(self) -> tuple[str, ...]:
        """Return ``--command CMD``."""
        return ("--command", self.command)


@dataclass(frozen=True, kw_only=True)
class CommandTarget(StartedTarget):
    """A command that measures by itself."""

    metric_regex: str | None = None
    """Finds, by its one group, the bytes in what the command prints."""
    snapshot_glob: str | None = None
    """Names, from the folder that is measured, the memory snapshots that it writes. Without either its exit status is
    all that it answers."""
    kind: Literal["command"] = "command"

    def words(self) -> tuple[str, ...]:
        """Return ``--command CMD`` and how its answer is read."""
        regex = () if self.metric_regex is None else ("--metric-regex", self.metric_regex)
        glob = () if self.snapshot_glob is None else ("--snapshot-glob", self.snapshot_glob)
        return ("--command", self.command, *(regex or glob or ("--exit-status",)))


AnyTarget = BundledTarget | CheckoutTarget
OwnKind = Literal["harness", "entry", "command"]
OWN_KINDS: tuple[OwnKind, ...] = ("harness", "entry", "command")
"""What can be named of a checkout."""


def named_target(
    kind: OwnKind,
    source: str,
    repo: str,
    *,
    metric_regex: str | None = None,
    snapshot_glob: str | None = None,
    exit_status: bool = False,
) -> CheckoutTarget:
    """Return what a user names by ``kind`` of the checkout ``repo``.

    Args:
        kind: whether ``source`` is a harness's file, an entry or a command.
        source: its name.
        repo: the checkout.
        metric_regex: of a command, see :class:`CommandTarget`.
        snapshot_glob: the same.
        exit_status: of a command, whether its exit status is all that counts. A command without any of the three is
            a program.
    """
    if kind == "harness":
        return HarnessTarget(harness=str(Path(source).absolute()), repo=repo)
    if kind == "entry":
        return EntryTarget(entry=source, repo=repo)
    if metric_regex is None and snapshot_glob is None and not exit_status:
        return ProgramTarget(command=source, repo=repo)
    return CommandTarget(command=source, metric_regex=metric_regex, snapshot_glob=snapshot_glob, repo=repo)


_KINDS: dict[str, type[AnyTarget]] = {
    "bundled": BundledTarget,
    "harness": HarnessTarget,
    "entry": EntryTarget,
    "program": ProgramTarget,
    "command": CommandTarget,
}


def target_from_json(document: dict[str, Any]) -> AnyTarget:
    """Read back what ``dataclasses.asdict`` made of a target."""
    return _KINDS[document["kind"]](**document)
