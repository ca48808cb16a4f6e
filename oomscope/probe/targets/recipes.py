"""From a job to a target: what is imported before a session, and what is built inside it.

A process plays one rank: where the world is larger, a ``fake`` process group stands in for the others (PyTorch's
``torch.testing._internal.distributed.fake_pg``), on which collectives return at once and leave buffers as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oomscope.probe.job import BundledTarget, CheckoutTarget, EntryTarget, HarnessTarget, ProbeJob, StartedTarget
from oomscope.probe.recording.session import Session
from oomscope.probe.targets.command.asked import check_command
from oomscope.probe.targets.context import Context, Target
from oomscope.probe.targets.entry import check_entry, load_entry
from oomscope.probe.targets.harness import HarnessError, Setup, build_target, check_harness, forget, load_setup

if TYPE_CHECKING:
    import torch

    from oomscope.config.schema import Config
    from oomscope.model.parallel.parallel_state import ParallelState


class Recipe(Protocol):
    """Code that is loaded and can be built on a device, in the world of the job."""

    def place(self) -> None:
        """Make process groups; called before the session is entered, for groups cannot be made of fake tensors."""
        ...

    def build(self, session: Session) -> Target:
        """Build the target on the session's device; called inside the session."""
        ...


def load_recipe(job: ProbeJob) -> Recipe:
    """Import what ``job`` measures; whatever the code raises passes through.

    Raises:
        HarnessError: the harness, the entry or the checkout cannot be used, or the target is a command.
    """
    target = job.target
    if isinstance(target, BundledTarget):
        return BundledRecipe.load(job, target)
    forget(target)
    if isinstance(target, HarnessTarget):
        return CheckoutRecipe(job, target, load_setup(target), where=target.harness)
    if isinstance(target, EntryTarget):
        return CheckoutRecipe(job, target, load_entry(target), where=target.entry)
    raise HarnessError(
        f"{target.title} is no code that could be built", remedy="run it by oomscope.probe.process.launch"
    )


def check_target(target: CheckoutTarget) -> None:
    """Refuse what cannot drive a checkout, whatever that holds, without running any of it.

    Raises:
        HarnessError: it is no harness, no entry or no command.
    """
    if isinstance(target, HarnessTarget):
        check_harness(Path(target.harness))
    elif isinstance(target, EntryTarget):
        check_entry(target.entry)
    elif isinstance(target, StartedTarget):
        check_command(target)


@contextmanager
def world_of(job: ProbeJob, device: torch.device) -> Iterator[None]:
    """Make this process rank ``job.rank`` of ``job.world_size`` for the length of the block, as far as it can tell."""
    if job.world_size == 1:
        yield
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backend = "fake" if device.type == "cpu" else f"{device.type}:fake,cpu:fake"
    dist.init_process_group(backend, rank=job.rank, world_size=job.world_size, store=FakeStore())
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class CheckoutRecipe:
    """A harness or an entry that is loaded, with what it imports of the checkout."""

    def __init__(self, job: ProbeJob, target: CheckoutTarget, setup: Setup, *, where: str) -> None:
        self._job = job
        self._target = target
        self._setup = setup
        self._where = where

    def place(self) -> None:
        """Leave groups to the code: the default one is there."""

    def build(self, session: Session) -> Target:
        """Call its function and let the session watch what it returns."""
        context = Context(
            device=session.device,
            repo=self._target.place,
            rank=self._job.rank,
            world_size=self._job.world_size,
            seed=self._job.seed,
            limit_bytes=self._job.limit_bytes,
        )
        target = build_target(self._setup, context, where=self._where)
        session.watch(target.model, target.optimizer)
        return target


class BundledRecipe:
    """The bundled transformer under a validated configuration."""

    def __init__(self, job: ProbeJob, config: Config) -> None:
        self._job = job
        self._config = config
        self._state: ParallelState | None = None

    @classmethod
    def load(cls, job: ProbeJob, target: BundledTarget) -> BundledRecipe:
        """Validate the configuration and import the model."""
        from oomscope.config.schema import Config
        from oomscope.model import trainer  # noqa: F401 - imported in the stage that says so

        return cls(job, Config.model_validate(target.config))

    def place(self) -> None:
        """Make the groups of every axis that this rank shares with others."""
        from oomscope.model.parallel.parallel_state import build_parallel_state

        self._state = build_parallel_state(self._config, rank=self._job.rank, world_size=self._job.world_size)

    def build(self, session: Session) -> Target:
        """Build this rank's stages, buffers and optimizer."""
        from oomscope.model.parallel.parallel_state import ParallelState
        from oomscope.model.trainer import Trainer

        state = self._state or ParallelState()
        trainer = Trainer(self._config, state, device=session.device, observer=session.observer)
        trainer.setup()
        session.watch(list(trainer.model), None)  # names its modules; phases and roles it tells itself
        iterations = count()
        return Target(lambda: trainer.step(next(iterations)))
