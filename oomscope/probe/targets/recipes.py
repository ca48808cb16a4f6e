"""From a job to a target: what is imported before a session, and what is built inside it.

A process plays one rank of a larger world. On a virtual card NCCL's stand-in and a store answer for the other ranks
(:mod:`oomscope.probe.targets.world`). On a real card, and for the bundled transformer, which knows what its peers do,
the group is PyTorch's ``fake`` one, on which collectives return at once and leave buffers as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.probe.job import (
    BundledTarget,
    CheckoutTarget,
    EntryTarget,
    HarnessTarget,
    ProbeJob,
    RunsOn,
    StartedTarget,
)
from oomscope.probe.targets.command import check_command
from oomscope.probe.targets.context import Context, Target
from oomscope.probe.targets.harness import (
    HarnessError,
    Setup,
    build_target,
    check_entry,
    check_harness,
    forget,
    load_entry,
    load_setup,
)

if TYPE_CHECKING:
    from oomscope.probe.recording.session import Session


@dataclass(frozen=True)
class Recipe:
    """Code that is loaded and can be built on a device, in the world of the job."""

    build: Callable[[Session], Target]
    """Builds the target on the session's device; called inside the session."""
    make_groups: Callable[[], None] = lambda: None
    """Makes process groups; called before the session is entered, so that they are no part of the run."""


def load_recipe(job: ProbeJob) -> Recipe:
    """Import what ``job`` measures; whatever the code raises passes through.

    Raises:
        HarnessError: the harness, the entry or the checkout cannot be used, or the target is a command.
    """
    target = job.target
    if isinstance(target, BundledTarget):
        return _bundled(job, target)
    forget(target)
    if isinstance(target, HarnessTarget):
        return _of_checkout(job, target, load_setup(target), where=target.harness)
    if isinstance(target, EntryTarget):
        return _of_checkout(job, target, load_entry(target), where=target.entry)
    raise HarnessError(f"{target.title} cannot be built", remedy="run it by oomscope.probe.process.launch")


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
def world_of(job: ProbeJob, backend: RunsOn) -> Iterator[None]:
    """Make this process rank ``job.rank`` of ``job.world_size`` for the length of the block."""
    if job.world_size == 1 and not job.in_world:
        yield
        return
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store: Store = FakeStore()
    groups = "cuda:fake,cpu:fake"
    if backend == "virtual" and not isinstance(job.target, BundledTarget):
        from oomscope.probe.targets.world import PlayedStore, play_one_rank

        play_one_rank(job.world_size)
        groups, store = "cuda:nccl,cpu:gloo", PlayedStore(job.world_size)
    dist.init_process_group(groups, rank=job.rank, world_size=job.world_size, store=store)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _of_checkout(job: ProbeJob, target: CheckoutTarget, setup: Setup, *, where: str) -> Recipe:
    """Return the recipe of a harness or an entry, loaded with what it imports of the checkout."""

    def build(session: Session) -> Target:
        context = Context(
            device=session.device,
            repo=target.place,
            rank=job.rank,
            world_size=job.world_size,
            seed=job.seed,
            limit_bytes=job.limit_bytes,
        )
        built = build_target(setup, context, where=where)
        session.watch(built.model, built.optimizer)
        return built

    return Recipe(build)


def _bundled(job: ProbeJob, target: BundledTarget) -> Recipe:
    """Return the recipe of the bundled transformer: this rank's stages, buffers and optimizer."""
    from oomscope.config.schema import Config
    from oomscope.model.parallel.parallel_state import ParallelState, build_parallel_state
    from oomscope.model.trainer import Trainer

    config, state = Config.model_validate(target.config), ParallelState()

    def make_groups() -> None:
        nonlocal state
        state = build_parallel_state(config, rank=job.rank, world_size=job.world_size)

    def build(session: Session) -> Target:
        trainer = Trainer(config, state, device=session.device, observer=session)
        trainer.setup()
        session.watch(list(trainer.model), None)  # for module names; phases and roles it reports itself
        iterations = count()
        return Target(lambda: trainer.step(next(iterations)))

    return Recipe(build, make_groups)
