"""From a configuration to a job: the target says what is measured, the sections allocator, device and probe say how."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomscope.probe.job import AnyTarget, BundledTarget, CheckoutTarget, ProbeJob, ProgramTarget

if TYPE_CHECKING:
    from oomscope.config.schema import Config

ITERATIONS_OF_A_PROGRAM: Final = 3
"""One more than of other targets: what a program does between its first steps is not known."""


def bundled_job(config: Config, *, rank: int = 0) -> ProbeJob:
    """Return the job that measures the bundled transformer under ``config``, as one rank of its world."""
    target = BundledTarget(config=config.model_dump(mode="json"))
    return _job(target, config, rank=rank, world_size=config.parallel.world_size)


def checkout_job(target: CheckoutTarget, settings: Config, *, rank: int = 0) -> ProbeJob:
    """Return the job that measures what lies in a checkout; only the three sections of ``settings`` count.

    A program runs :data:`ITERATIONS_OF_A_PROGRAM` unless ``settings`` says otherwise.
    """
    job = _job(target, settings, rank=rank, world_size=settings.probe.world_size or 1)
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
        limit_bytes=device.limit,
        non_torch_bytes=device.non_torch_bytes,
        other_process_bytes=device.other_process_bytes,
        allocator_conf=allocator.conf,
        cublas_workspace_config=device.cublas_workspace_config,
        stream_lag=device.stream_lag,
        address_policy=device.address_policy,
        timeout_s=probe.timeout_s,
        max_entries=probe.max_entries,
        max_frames=probe.max_frames,
    )
