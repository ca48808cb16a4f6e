"""What the worker needs of a backend: a session that records everything a target allocates while it is open.

The worker builds the target inside ``with session:``, runs each step inside ``with session.iteration(i):`` and
asks for the :class:`~oomscope.probe.measurement.Measurement` after the session was left. It never learns which
backend it drives.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from oomscope.errors import MachineUnfitError
from oomscope.model.observer import Observer
from oomscope.probe.environment import allocator_conf, cublas_workspace_config
from oomscope.probe.gpus import DEFAULT_GPU, Gpu, find_gpu
from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.measurement import Measurement

if TYPE_CHECKING:
    import torch

Modules: TypeAlias = "torch.nn.Module | list[torch.nn.Module] | None"
Optimizers: TypeAlias = "torch.optim.Optimizer | list[torch.optim.Optimizer] | None"


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What a backend is told; plain data, sizes in bytes."""

    gpu: Gpu | None
    """The card to play; None on cuda means the card that is there."""
    limit_bytes: int | None = None
    """A card with this many bytes in all; None means the card's own total."""
    unlimited: bool = False
    """No allocation fails: the run that tells the demand after a failure. Only sim can."""
    non_torch_bytes: int = 0
    other_process_bytes: int = 0
    allocator_conf: str = ""
    torch_version: str | None = None
    """Whose allocator rules sim follows; None means the installed torch's."""
    cublas_workspace_config: str | None = None
    op_temporaries: bool = True
    stream_lag: int = 0
    remember_shapes: bool = True
    """Sim repeats what a shape rule returned for the same signature of arguments; False asks torch each time."""
    seed: int = 1234
    rank: int = 0
    world_size: int = 1
    max_entries: int = 1_000_000
    max_frames: int = 40
    source_root: str | None = None
    """The checkout of a target that lies in one; None for the bundled transformer."""


def listed(value: Any) -> list[Any]:
    """Return the models or optimizers that a target names: none, one or several."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Session(Protocol):
    """One recorded run. Use it once."""

    @property
    def device(self) -> torch.device:
        """Where the target puts its model and data; known before the session is entered."""
        ...

    @property
    def observer(self) -> Observer:
        """Where the bundled trainer tells phases and roles."""
        ...

    def __enter__(self) -> Self:
        """Start to record."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Stop to record; the last failed allocation and the end state are kept. Errors pass through."""
        ...

    def iteration(self, index: int) -> AbstractContextManager[object]:
        """Mark what runs inside as iteration ``index`` (from 0); before the first one the phase is ``init``."""
        ...

    def watch(self, model: Modules, optimizer: Optimizers) -> None:
        """Tell parameters, gradients, optimizer states, modules and phases of a target that does not itself."""
        ...

    def measurement(self) -> Measurement:
        """Return what was recorded. Call it after the session was left."""
        ...


def resolve_backend(job: ProbeJob) -> Literal["sim", "cuda"]:
    """Return the backend that ``job.backend`` stands for on this machine: ``auto`` is cuda where torch sees a GPU.

    Raises:
        MachineUnfitError: cuda was asked for and torch finds no GPU.
    """
    if job.backend == "sim":
        return "sim"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if job.backend == "cuda":
        raise MachineUnfitError(
            "torch finds no CUDA device", where="--backend cuda", remedy="use --backend sim or a machine with a GPU"
        )
    return "sim"


def settings_of(job: ProbeJob, backend: Literal["sim", "cuda"], *, unlimited: bool = False) -> SessionSettings:
    """Return what a backend needs to know of ``job``.

    Raises:
        UsageError: no card goes by the name ``job.gpu``.
    """
    name = job.gpu or (DEFAULT_GPU if backend == "sim" else None)
    return SessionSettings(
        gpu=find_gpu(name) if name else None,
        limit_bytes=job.limit_bytes,
        unlimited=unlimited,
        non_torch_bytes=job.non_torch_bytes,
        other_process_bytes=job.other_process_bytes,
        allocator_conf=allocator_conf(job, os.environ),
        torch_version=job.torch_version,
        cublas_workspace_config=cublas_workspace_config(job, os.environ),
        op_temporaries=job.op_temporaries,
        stream_lag=job.stream_lag,
        seed=job.seed,
        rank=job.rank,
        world_size=job.world_size,
        max_entries=job.max_entries,
        max_frames=job.max_frames,
        source_root=job.target.repo if isinstance(job.target, CheckoutTarget) else None,
    )


def open_session(settings: SessionSettings, backend: Literal["sim", "cuda"]) -> Session:
    """Return a fresh session of ``backend``."""
    if backend == "sim":
        from oomscope.probe.sim.session import SimSession

        return SimSession(settings)
    from oomscope.probe.cuda import CudaSession

    return CudaSession(settings)
