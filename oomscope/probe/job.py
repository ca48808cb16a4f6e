"""The job of one probe: plain data that crosses the process boundary as JSON and is the key of cached results.

The bundled transformer is a configuration. All other targets lie in a checkout (:class:`CheckoutTarget`): whoever lays
out commits, edits their files or keeps results needs to know no more of them than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from oomscope.virtual.settings import AddressPolicy

if TYPE_CHECKING:
    from oomscope.config.schema import Config

RunsOn = Literal["virtual", "cuda"]
"""What a target runs on: a virtual card, or the real one that is there."""
Backend = Literal["auto"] | RunsOn


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
    """Folder of the checkout, with slashes, that is measured as if there were no other; empty for all of it."""

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
        """Return what distinguishes it from others of its checkout, as JSON values; files outside count by content."""
        where = {"repo"} if self.folder else {"repo", "folder"}
        return {name: value for name, value in asdict(self).items() if name not in where}

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
        """Return the same target by absolute paths."""
        return replace(super().absolute(), harness=str(Path(self.harness).absolute()))

    def identity(self) -> dict[str, Any]:
        """Return its kind and folder: where the file lies does not matter."""
        return {name: value for name, value in super().identity().items() if name != "harness"}

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
    """A function in the checkout with the signature of a harness's ``setup``."""

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
    """Words of the command, quoted as for a shell; no shell is started."""

    @property
    def title(self) -> str:
        """The command, its first word without folders."""
        program, *rest = self.command.split(" ", 1)
        return " ".join([program.rpartition("/")[2], *rest])


@dataclass(frozen=True, kw_only=True)
class ProgramTarget(StartedTarget):
    """A training program that is started as it is, and recorded in each of its processes that imports torch."""

    rank: int | None = None
    """Rank to report of a world that the program starts itself; None for the worst."""
    kind: Literal["program"] = "program"

    def words(self) -> tuple[str, ...]:
        """Return ``--command CMD``, and the rank where one was chosen."""
        return ("--command", self.command, *(() if self.rank is None else ("--rank", str(self.rank))))


@dataclass(frozen=True, kw_only=True)
class CommandTarget(StartedTarget):
    """A command that measures by itself."""

    metric_regex: str | None = None
    """Expression whose one group matches the bytes in what the command prints."""
    snapshot_glob: str | None = None
    """Pattern, from the folder that is measured, of the memory snapshots that it writes. Without either key the exit
    status is the whole answer."""
    kind: Literal["command"] = "command"

    def words(self) -> tuple[str, ...]:
        """Return ``--command CMD`` and how its answer is read."""
        regex = () if self.metric_regex is None else ("--metric-regex", self.metric_regex)
        glob = () if self.snapshot_glob is None else ("--snapshot-glob", self.snapshot_glob)
        return ("--command", self.command, *(regex or glob or ("--exit-status",)))


AnyTarget = BundledTarget | CheckoutTarget
OwnKind = Literal["harness", "entry", "command"]
OWN_KINDS: tuple[OwnKind, ...] = ("harness", "entry", "command")
"""Kinds of targets in a checkout."""


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


@dataclass(frozen=True, kw_only=True)
class ProbeJob:
    """One measurement of one rank."""

    target: AnyTarget
    backend: Backend = "auto"
    rank: int = 0
    world_size: int = 1
    in_world: bool = False
    """Whether to begin the world of a harness or program also if that has one rank."""
    iterations: int = 2
    seed: int = 1234
    gpu: str | None = None
    """A card by name; null means the default of the backend."""
    devices: int = 1
    """Cards that each process of a program sees, on virtual."""
    limit_bytes: int | None = None
    """A card with this many bytes in all; null means the card's own total."""
    non_torch_bytes: int = 1024**3
    other_process_bytes: int = 0
    allocator_conf: str = ""
    cublas_workspace_config: str | None = None
    stream_lag: int = 0
    address_policy: AddressPolicy = "spans"
    """The order of a virtual card's addresses."""
    compute_values: bool = False
    """Whether the host computes what a virtual card's kernels would."""
    measure_demand: bool = True
    """Whether to run once more without a limit after an OOM, on a virtual card, so that the demand of the whole run is
    known, and after a run for which the allocator emptied its cache, so that the bytes that it would hold otherwise are
    known."""
    confirm: bool | None = False
    """Whether to run the whole target again, after a failure by fragmentation, under the settings that may cure it;
    null means on a virtual card, where a run costs little, and not on a real one."""
    timeout_s: float = 600.0
    max_entries: int = 1_000_000
    max_frames: int = 100
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables that this job sets on top of the user's; null takes one away."""
    snapshot_path: str | None = None
    """Path of the snapshot to write; null means none is kept."""

    def to_json(self) -> dict[str, Any]:
        """Return the job as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ProbeJob:
        """Read back what :meth:`to_json` wrote."""
        fields = dict(document)
        return cls(target=target_from_json(fields.pop("target")), **fields)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One line of progress from a running probe."""

    stage: str
    """``import``, ``setup``, ``step``, ``analyse``; ``demand`` during the run without a limit after an OOM, ``cures``
    during runs under settings that may cure it."""
    done: int = 0
    total: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the line's JSON values."""
        return asdict(self)


OnProgress = Callable[[Progress], None]

ITERATIONS_OF_A_PROGRAM: Final = 3
"""One more than of other targets: what a program does between its first steps is not known."""


def bundled_job(config: Config, *, rank: int = 0) -> ProbeJob:
    """Return the job that measures the bundled transformer under ``config``, as one rank of its world."""
    target = BundledTarget(config=config.model_dump(mode="json"))
    return _job(target, config, rank=rank, world_size=config.parallel.world_size)


def checkout_job(target: CheckoutTarget, settings: Config) -> ProbeJob:
    """Return the job that measures what lies in a checkout; only the three sections of ``settings`` count.

    A program runs :data:`ITERATIONS_OF_A_PROGRAM` unless ``settings`` says otherwise.
    """
    world_size = settings.probe.world_size
    job = replace(_job(target, settings, rank=0, world_size=world_size or 1), in_world=world_size is not None)
    if isinstance(target, ProgramTarget) and "iterations" not in settings.probe.model_fields_set:
        return replace(job, iterations=ITERATIONS_OF_A_PROGRAM)
    return job


def _job(target: AnyTarget, settings: Config, *, rank: int, world_size: int) -> ProbeJob:
    allocator, device, probe = settings.allocator, settings.device, settings.probe
    return ProbeJob(
        target=target,
        backend=probe.backend,
        rank=rank,
        world_size=world_size,
        iterations=probe.iterations,
        seed=probe.seed,
        gpu=device.gpu,
        devices=device.count,
        limit_bytes=device.limit,
        non_torch_bytes=device.non_torch_bytes,
        other_process_bytes=device.other_process_bytes,
        allocator_conf=allocator.conf,
        cublas_workspace_config=device.cublas_workspace_config,
        stream_lag=device.stream_lag,
        address_policy=device.address_policy,
        compute_values=device.compute_values,
        timeout_s=probe.timeout_s,
        max_entries=probe.max_entries,
        max_frames=probe.max_frames,
    )
