"""Settings of a run: which backend measures a job, the card, and a session on it. No torch here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oomscope import virtual
from oomscope.errors import MachineUnfitError
from oomscope.probe.job import ProbeJob, ProgramTarget, RunsOn
from oomscope.probe.machine.backends import backend_of, has_card, refuse_without_card
from oomscope.probe.machine.environment import allocator_conf
from oomscope.probe.measurement import DeviceBudget
from oomscope.virtual import CardSettings
from oomscope.virtual.cards import DEFAULT_CARD, Card, find_card
from oomscope.virtual.settings import AddressPolicy, Peers, ValueRule

if TYPE_CHECKING:
    from oomscope.probe.recording.session import Session

UNLIMITED_BYTES: Final = 2**42
"""Bytes of the card in a run without a limit; programs, which choose sizes by it, see the limit. With expandable
segments torch reserves addresses for each pool of a stream: 9/8 of the card (c10/cuda/CUDACachingAllocator.cpp); a
process has 2^47 bytes of them."""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """How one run is made; plain data, sizes in bytes."""

    gpu: Card | None
    """The card to play; None on cuda means the card that is there."""
    devices: int = 1
    """Virtual cards that a process sees."""
    limit_bytes: int | None = None
    """A card with this many bytes in all; None means the card's own total."""
    values: ValueRule = "zeros"
    """Rule for values that a virtual card does not hold."""
    is_bounded: bool = False
    """Whether a program ends after as many backward passes as in earlier runs: with other values it might not step."""
    device: int | None = None
    """The card to report of a program that uses several; None for the one that decides."""
    rank: int | None = None
    """The rank to report of a world that a program started; None for the worst."""
    unlimited: bool = False
    """Whether no allocation fails, to measure the demand after a failure. Only a virtual card can do that."""
    non_torch_bytes: int = 0
    other_process_bytes: int = 0
    allocator_conf: str = ""
    stream_lag: int = 0
    address_policy: AddressPolicy = "spans"
    """The order of a virtual card's addresses."""
    compute_values: bool = False
    """Whether the host computes what a virtual card's kernels would."""
    iterations: int | None = None
    """Training iterations, instead of as many as the job asks for."""
    ledger: str = ""
    """The file through which several processes share a virtual card; empty for a card of one process."""
    is_recorded: bool = True
    """Whether events are recorded with stacks and positions; else without them, which costs less."""
    max_entries: int = 1_000_000
    max_frames: int = 100

    def budget(self) -> DeviceBudget:
        """Return the virtual card as a process of the run sees it."""
        assert self.gpu is not None  # noqa: S101 - a virtual card plays one
        return DeviceBudget(
            gpu=self.gpu.name,
            limit_bytes=self.limit_bytes or self.gpu.total_bytes,
            non_torch_bytes=self.non_torch_bytes,
            other_process_bytes=self.other_process_bytes,
        )

    def card_variables(self, *, peers: Peers = "alike") -> dict[str, str]:
        """Return the variables by which a process knows its virtual card, whose other ranks are ``peers``."""
        assert self.gpu is not None  # noqa: S101 - a virtual card plays one
        budget = self.budget()
        total = budget.limit_bytes
        return CardSettings(
            card=self.gpu,
            devices=self.devices,
            total_bytes=total,
            used_bytes=min(budget.non_torch_bytes + budget.other_process_bytes, total),
            budget_bytes=max(UNLIMITED_BYTES, total) if self.unlimited else 0,
            address_policy=self.address_policy,
            is_computed=self.compute_values,
            event_lag=self.stream_lag,
            values=self.values,
            peers=peers,
            ledger=self.ledger,
        ).variables()


def resolve_backend(job: ProbeJob) -> RunsOn:
    """Return the backend that ``job.backend`` stands for on this machine (:mod:`oomscope.probe.machine.backends`).

    Call it before torch is imported: the virtual card is loaded here, where it is asked for or torch needs it.

    Raises:
        MachineUnfitError: cuda was asked for and there is no GPU, or the virtual card and it cannot be loaded.
    """
    backend = backend_of(job)
    if isinstance(job.target, ProgramTarget):  # it has a torch of its own, and its processes load the card
        refuse_without_card(backend)
    elif backend == "virtual":
        virtual.load()
    elif not sees_gpu():
        refuse_without_card(backend)
        remedy = "use --backend virtual, which needs none"
        raise MachineUnfitError("torch finds no CUDA device", where="--backend cuda", remedy=remedy)
    return backend


def sees_gpu() -> bool:
    """Whether torch can be expected to use a GPU. It is not asked: its forks could not use the card any more.

    Raises:
        MachineUnfitError: there is a GPU, and torch cannot be imported.
    """
    if virtual.is_loaded() or not has_card():  # without a GPU a torch may lack the libraries that importing it needs
        return False
    try:
        import torch
    except (ImportError, OSError) as error:
        raise MachineUnfitError(
            f"torch cannot be imported ({error})", remedy="install what it misses, or use --backend virtual"
        ) from error
    return bool(torch.backends.cuda.is_built())


def settings_of(job: ProbeJob, backend: RunsOn) -> SessionSettings:
    """Return how the first run of ``job`` is made.

    Raises:
        UsageError: no card goes by the name ``job.gpu``.
    """
    name = job.gpu or (None if backend == "cuda" else DEFAULT_CARD)
    return SessionSettings(
        gpu=find_card(name) if name else None,
        devices=job.devices,
        limit_bytes=job.limit_bytes,
        non_torch_bytes=job.non_torch_bytes,
        other_process_bytes=job.other_process_bytes,
        allocator_conf=allocator_conf(job, os.environ),
        stream_lag=job.stream_lag,
        address_policy=job.address_policy,
        compute_values=job.compute_values,
        max_entries=job.max_entries,
        max_frames=job.max_frames,
    )


def open_session(settings: SessionSettings, backend: RunsOn) -> Session:
    """Return a fresh session of ``backend``."""
    from oomscope.probe.recording.cards import RealCard, VirtualCard
    from oomscope.probe.recording.session import Session

    return Session(settings, VirtualCard(settings) if backend == "virtual" else RealCard(settings))


def listed(value: Any) -> list[Any]:
    """Return the models or optimizers that a target names: none, one or several."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
