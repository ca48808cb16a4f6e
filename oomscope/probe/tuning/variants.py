"""One configuration under several overrides: each variant checked by the rules, probed, and its time estimated.

What the rules refuse is an outcome of its own, with their reason, and is never probed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from oomscope.config.problems import InvalidConfigError
from oomscope.errors import ConfigError
from oomscope.probe.job import ProbeJob, bundled_job
from oomscope.probe.machine.checks import check_card
from oomscope.probe.process import warm
from oomscope.probe.ranks import chosen_ranks, needed_bytes, worst_of
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.judge.confirmed import is_tight
from oomscope.units import Bytes

if TYPE_CHECKING:
    from oomscope.config.load import LoadedConfig
    from oomscope.config.rules.rule import Finding
    from oomscope.config.schema import Config

LoadWith = Callable[[Sequence[str]], "LoadedConfig"]
"""Returns the configuration with further overrides on top; raises ConfigError where the rules refuse it."""
VariantOutcome = Literal["fits", "oom", "error", "refused", "interrupted"]
Answer = TypeVar("Answer")
STILL_HELP = frozenset({"O8", "O14", "O17"})
"""Warnings that a change does less than it could, or costs more; other warnings of its keys say that it is idle."""


Probe = Callable[[ProbeJob, threading.Event], ProbeResult]
"""Measures a job, as :func:`launched` does; raises ``launch.StoppedError`` soon after the event was set."""


def launched(job: ProbeJob, stop: threading.Event) -> ProbeResult:
    """Measure ``job`` in a process of its own."""
    return warm.run(job, stop=stop)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The outcome of one configuration. Sizes and times are None where nothing was measured or estimated."""

    overrides: tuple[str, ...]
    outcome: VariantOutcome
    message: str = ""
    """Reason why it was refused, failed, or ran out of memory."""
    verdict: str | None = None
    """The verdict's kind, after an OOM."""
    rank: int | None = None
    """The rank that decides: of those that fail the one that needs most, else the one with the least margin."""
    stages: int = 1
    """Pipeline stages; the ranks of one differ from those of another."""
    peak: Bytes | None = None
    """The most requested bytes of any rank that was probed (after an OOM those of the run without a limit, or at least
    those asked for), and the most reserved bytes of any (after an OOM those up to the failure)."""
    margin_bytes: int | None = None
    """Bytes left on the card at that peak; after an OOM, what requested bytes exceed it by, negative, and None where
    they would fit but for fragmentation."""
    available_bytes: int | None = None
    """Bytes of the card that the process may use."""
    host_bytes: int | None = None
    """The most pinned host bytes of any rank."""
    step_s: float | None = None
    """Estimated seconds of a step of the slowest pipeline stage (``oomscope.model.cost.step_time``)."""
    sequence_s: float | None = None
    """Estimated seconds a sequence, over all replicas, by which steps of different batches are compared."""
    idle: str = ""
    """The rules' warning that one of its settings does nothing here."""

    @property
    def requested_bytes(self) -> int | None:
        """The most requested bytes; None where nothing was measured."""
        return self.peak.requested_bytes if self.peak else None

    @property
    def reserved_bytes(self) -> int | None:
        """The most reserved bytes, of an OOM up to the failure; None where nothing was measured."""
        return self.peak.reserved_bytes if self.peak else None

    @property
    def fits(self) -> bool:
        """Whether every rank that was probed went through."""
        return self.outcome == "fits"

    @property
    def is_tight(self) -> bool:
        """Whether it fits with so little to spare that another run may fail, as of a setting (docs/verdict.md)."""
        margin, available = self.margin_bytes, self.available_bytes
        return self.fits and margin is not None and available is not None and is_tight(margin, available)

    @property
    def is_roomy(self) -> bool:
        """Whether it fits with room to spare."""
        return self.fits and not self.is_tight

    @property
    def fails_over_fragments(self) -> bool:
        """Whether it would fit but for fragmentation."""
        return self.verdict == "fragmentation" and self.margin_bytes is None


def measure_variant(load: LoadWith, overrides: Sequence[str], probe: Probe, stop: threading.Event) -> Variant:
    """Return the outcome of the configuration with ``overrides``; ``stop`` ends the probe that runs.

    All ranks that the configuration names are measured, also after one that runs out of memory: variants are compared
    by the rank that needs most, which may be another. Only an error ends it, since then nothing can be compared.
    """
    overrides = tuple(overrides)
    try:
        loaded = load(overrides)
        check_card(loaded)
    except ConfigError as error:
        return Variant(overrides=overrides, outcome="refused", message=objection_text(error))
    config = loaded.config
    job, results = bundled_job(config), []
    for rank in chosen_ranks(config.probe.rank, config):
        results.append(probe(replace(job, rank=rank), stop))
        if results[-1].outcome == "error":
            break
    idle, step_s = idle_finding(loaded, overrides), slowest_step(config)
    return replace(
        variant_of(results, overrides),
        stages=config.parallel.pipeline_model_parallel_size,
        step_s=step_s,
        sequence_s=per_sequence(step_s, config),
        idle=f"{idle.message} (rule {idle.rule})" if idle else "",
    )


def per_sequence(step_s: float | None, config: Config) -> float | None:
    """Return the estimated seconds of a step over its sequences, of all replicas; None where speeds are not known."""
    sequences = config.num_microbatches * config.data.micro_batch_size * config.parallel.data_parallel_size
    return None if step_s is None else step_s / sequences


def idle_finding(loaded: LoadedConfig, overrides: Sequence[str]) -> Finding | None:
    """Return the first warning that something of what ``overrides`` set does nothing, if there is one."""
    keys = {override.partition("=")[0] for override in overrides}
    idle = (row for row in loaded.findings if row.rule not in STILL_HELP and row.keys[0] in keys)
    return next(idle, None)


def objection_text(error: ConfigError) -> str:
    """Return why the rules refuse a variant: the first of their reasons and its rule, without place and source."""
    if not isinstance(error, InvalidConfigError):
        return error.message
    first = error.problems[0]
    text, rule, _source = first.message.rpartition(f" {first.rule}: ")
    return f"{text}{rule.removesuffix(': ')})" if rule else first.message


def variant_of(results: list[ProbeResult], overrides: tuple[str, ...] = ()) -> Variant:
    """Return what the ``results`` of its ranks say of a variant: the worst decides, the sizes are the most of any."""
    worst = worst_of(results)
    verdict = worst.verdict if worst.outcome == "oom" else None
    counted = [worst] if worst.outcome == "error" else results
    live = _most(needed_bytes(result) for result in counted)
    held = _most(result.peak.reserved_bytes if result.peak else None for result in counted)
    bound = live if worst.outcome == "oom" else held
    margin = None if bound is None or worst.available_bytes is None else worst.available_bytes - bound
    message = worst.failure.message if worst.failure else ""
    if worst.outcome == "oom":
        margin = margin if margin is not None and margin < 0 else None
        message = verdict.headline if verdict else worst.oom.message if worst.oom else ""
    return Variant(
        overrides=overrides,
        outcome=worst.outcome,
        message=message,
        verdict=verdict.kind if verdict else None,
        rank=worst.rank,
        peak=None if live is None else Bytes(requested_bytes=live, reserved_bytes=held),
        margin_bytes=margin,
        available_bytes=worst.available_bytes,
        host_bytes=_most(None if result.peak is None else result.pinned_bytes or 0 for result in counted),
    )


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def slowest_step(config: Config) -> float | None:
    """Return the estimated seconds of a step of the slowest pipeline stage; None where speeds are not known."""
    from oomscope.model.cost.step_time import step_cost
    from oomscope.model.parallel.parallel_state import stage_representatives

    costs = [step_cost(config, rank=rank) for rank in stage_representatives(config)]
    known = [cost.seconds for cost in costs if cost is not None]
    return max(known) if known and len(known) == len(costs) else None


def side_by_side(
    calls: Sequence[Callable[[threading.Event], Answer]], jobs: int
) -> Generator[tuple[int, Answer], None, None]:
    """Make ``calls``, ``jobs`` at a time, and yield the number and answer of each as it comes.

    An interrupt ends what runs, at once, and passes on; so does leaving the iteration early.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        running: dict[Future[Answer], int] = {}
        numbers = iter(range(len(calls)))
        try:
            while True:
                while len(running) < jobs and (number := next(numbers, None)) is not None:
                    running[pool.submit(calls[number], stop)] = number
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            stop.set()
