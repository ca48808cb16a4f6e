"""Which backend answers a job, what it is told of the job, and a session of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oomscope import virtual
from oomscope.errors import MachineUnfitError
from oomscope.probe.job import ProbeJob, ProgramTarget, RunsOn
from oomscope.probe.machine.backends import backend_of, has_card
from oomscope.probe.machine.environment import allocator_conf
from oomscope.probe.recording.settings import SessionSettings
from oomscope.virtual.cards import DEFAULT_CARD, find_card

if TYPE_CHECKING:
    from oomscope.probe.recording.session import Session


def resolve_backend(job: ProbeJob) -> RunsOn:
    """Return the backend that ``job.backend`` stands for on this machine (:mod:`oomscope.probe.machine.backends`).

    Call it before torch is imported: the virtual card is loaded here, where it is asked for or torch needs it.

    Raises:
        MachineUnfitError: cuda was asked for and there is no GPU, or the virtual card and it cannot be loaded.
    """
    backend = backend_of(job)
    if isinstance(job.target, ProgramTarget):
        if backend == "cuda" and not has_card():
            raise MachineUnfitError("there is no GPU", where="--backend cuda", remedy="use --backend virtual")
    elif backend == "virtual":
        virtual.load()
    elif not sees_gpu():
        raise MachineUnfitError(
            "torch finds no CUDA device", where="--backend cuda", remedy="use --backend virtual, which needs none"
        )
    return backend


def sees_gpu() -> bool:
    """Whether torch can be expected to use a GPU. It is not asked: its forks could not use the card any more."""
    import torch

    return not virtual.is_loaded() and torch.backends.cuda.is_built() and has_card()


def settings_of(job: ProbeJob, backend: RunsOn) -> SessionSettings:
    """Return what a backend needs to know of ``job``.

    Raises:
        UsageError: no card goes by the name ``job.gpu``.
    """
    name = job.gpu or (None if backend == "cuda" else DEFAULT_CARD)
    return SessionSettings(
        gpu=find_card(name) if name else None,
        limit_bytes=job.limit_bytes,
        non_torch_bytes=job.non_torch_bytes,
        other_process_bytes=job.other_process_bytes,
        allocator_conf=allocator_conf(job, os.environ),
        stream_lag=job.stream_lag,
        address_policy=job.address_policy,
        max_entries=job.max_entries,
        max_frames=job.max_frames,
    )


def open_session(settings: SessionSettings, backend: RunsOn) -> Session:
    """Return a fresh session of ``backend``."""
    from oomscope.probe.recording.cards import RealCard, VirtualCard
    from oomscope.probe.recording.session import Session

    return Session(settings, VirtualCard(settings) if backend == "virtual" else RealCard(settings))
