"""Which backend answers a job, what it is told of the job, and a session of it."""

from __future__ import annotations

import os
from typing import Literal

from oomscope.errors import MachineUnfitError
from oomscope.probe.environment import allocator_conf, cublas_workspace_config
from oomscope.probe.gpus import DEFAULT_GPU, find_gpu
from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.session import Session, SessionSettings


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
