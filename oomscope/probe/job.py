"""What one probe is asked: plain data that crosses the process boundary as JSON and keys the cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from oomscope.probe.targets import (
    AnyTarget,
    BundledTarget,
    CheckoutTarget,
    CommandTarget,
    EntryTarget,
    HarnessTarget,
    ProgramTarget,
    StartedTarget,
    target_from_json,
)
from oomscope.virtual.settings import AddressPolicy

__all__ = [
    "AnyTarget",
    "Backend",
    "BundledTarget",
    "CheckoutTarget",
    "CommandTarget",
    "EntryTarget",
    "HarnessTarget",
    "ProbeJob",
    "ProgramTarget",
    "Progress",
    "RunsOn",
    "StartedTarget",
]

RunsOn = Literal["virtual", "cuda"]
"""What a target runs on: a virtual card, or the real one that is there."""
Backend = Literal["auto"] | RunsOn


@dataclass(frozen=True, kw_only=True)
class ProbeJob:
    """One measurement of one rank."""

    target: AnyTarget
    backend: Backend = "auto"
    rank: int = 0
    world_size: int = 1
    iterations: int = 2
    seed: int = 1234
    gpu: str | None = None
    """A card by name; null means the default of the backend."""
    limit_bytes: int | None = None
    """A card with this many bytes in all; null means the card's own total."""
    non_torch_bytes: int = 1024**3
    other_process_bytes: int = 0
    allocator_conf: str = ""
    cublas_workspace_config: str | None = None
    stream_lag: int = 0
    address_policy: AddressPolicy = "ascending"
    """The order of a virtual card's addresses."""
    measure_demand: bool = True
    """On a virtual card run once more without a limit after an OOM, so that the demand of the whole run is known, and
    after a run for which the allocator emptied its cache, so that what it would hold otherwise is."""
    confirm: bool | None = False
    """After a failure by fragmentation run the whole target again under the settings that may cure it; null means on a
    virtual card, where a run costs little, and not on a real one."""
    timeout_s: float = 600.0
    max_entries: int = 1_000_000
    max_frames: int = 40
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables that this job sets on top of the user's; null takes one away."""
    snapshot_path: str | None = None
    """Where to write the snapshot; null means none is kept."""
    snapshot_force: bool = True
    """Replace a file that exists there by then; without it the snapshot is lost, and a note says so."""

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
    detail: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the line's JSON values."""
        return asdict(self)
