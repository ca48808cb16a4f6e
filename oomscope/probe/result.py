"""What a probe answers: the document behind ``oomscope probe --json`` and the input of bisect, gate and reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from oomscope.printable import printable
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.sites import Site, SiteBytes
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import Bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from oomscope.probe.job import ProbeJob
    from oomscope.snapshot.accounting.timeline import Timeline


__all__ = ["Site", "SiteBytes"]  # re-exported, besides the definitions here
SCHEMA_VERSION = 3
Outcome = Literal["fits", "oom", "error"]
MeasuredOn = Literal["virtual", "cuda", "command"]
"""Backend of the measurement; ``command``: only the command knows where it ran."""
_LONGEST_LINE: Final = 200
"""Characters of a line of the target's output that a reason repeats."""
ErrorKind = Literal[
    "import",
    "setup",
    "step",
    "untestable",
    "nothing",
    "crash",
    "timeout",
    "killed",
    "lost",
    "exit",
    "unfit",
    "usage",
    "internal",
]
"""``nothing``: it ran, and put nothing on the device. ``lost``: a cluster ended every job that was to measure it.
``exit``: a command ended with a status from 1 to 124.
``usage``: what the user gave (harness, settings) cannot be used, which is no fault of the code under test.
``internal``: a defect of oomscope."""
Unrecorded = Literal["without_torch", "failed_before_torch", "before_a_step"]
"""Why nothing of a program could be recorded: it ended well without torch, it failed before it imported torch, or it
ended before its first step."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The largest amount of requested bytes, and what stood beside it."""

    requested_bytes: int
    allocated_bytes: int | None
    """torch's allocated_bytes.all.peak; None, as the next two, where a command printed its requested bytes alone."""
    active_bytes: int | None
    reserved_bytes: int | None
    """torch's reserved_bytes.all.peak: the most of the whole run, which may be another moment than this peak's, see
    ``ProbeResult.reserved_peak``."""
    iteration: int
    phase: str
    microbatch: int
    site: Site | None
    """The allocation that made the peak."""
    event: int
    categories: dict[str, int] = field(default_factory=dict)
    """Requested bytes at the peak; sums to requested_bytes."""
    sites: tuple[SiteBytes, ...] = ()
    """Requested bytes at the peak by site; sums to requested_bytes."""
    stacks: LiveStacks | None = None
    """Requested bytes by whole stack at the peak, and beside it at a failed allocation and at the end; None where no
    stack is known."""


@dataclass(frozen=True, kw_only=True)
class ReservedPeak:
    """How much the allocator held at most, and the moment at which its overhead is measured.

    That is, of the moments at which it held within one large segment (20 MiB) of its most, the one with most requested
    bytes.
    """

    reserved_bytes: int
    """Most reserved bytes at any time."""
    requested_bytes: int
    """Requested bytes at the moment; the rest of the reserved bytes then is overhead."""
    iteration: int
    phase: str
    microbatch: int
    event: int
    reserved_then_bytes: int
    """Reserved bytes at the moment."""
    largest_free_bytes: int | None = None
    """The largest block that the allocator held then and nobody used; None where that cannot be known."""

    @property
    def overhead_bytes(self) -> int:
        """What was reserved at the moment and not requested."""
        return self.reserved_then_bytes - self.requested_bytes


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """The largest amount of requested bytes in an optimizer's step, most of which does not depend on the batch."""

    requested_bytes: int
    iteration: int
    event: int
    categories: dict[str, int]
    """Requested bytes then; sums to requested_bytes."""
    temporaries: LiveStacks
    """Bytes of the temporary tensors by whole stack."""


@dataclass(frozen=True, kw_only=True)
class PhaseBytes:
    """The peak inside one phase of one iteration."""

    iteration: int
    phase: str
    requested_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Oom:
    """The allocation that failed, or what else ended the run for lack of memory."""

    requested_bytes: int | None
    """Bytes of the failed request; None where the refusal does not say."""
    iteration: int
    phase: str
    microbatch: int
    site: Site | None
    message: str
    event: int | None = None
    sites: tuple[SiteBytes, ...] = ()
    """Requested bytes at the failure by site, largest first: less than the peak's where that came earlier."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no measurement."""

    kind: ErrorKind
    message: str
    """What failed, in one line."""
    detail: str = ""
    """The target's own traceback or the end of its stderr, for the log file."""
    unrecorded: Unrecorded | None = None
    is_status_alone: bool = False
    """Whether it ended by a status without an exception, as argparse does for wrong arguments."""
    of_values: bool = False
    """Whether runs with other numbers in place of unknown values found it; their output is not the program's."""

    @property
    def reason(self) -> str:
        """The message; of a program of which no more is known, with the last line that it printed."""
        is_bare = self.unrecorded == "failed_before_torch" or (self.is_status_alone and not self.of_values)
        lines = self.detail.split("\n") if is_bare else []
        last = next(filter(None, map(str.strip, reversed(lines))), "")
        return f"{self.message}: {printable(last[:_LONGEST_LINE])}" if last else self.message


@dataclass(frozen=True, kw_only=True)
class SurvivedFailures:
    """Allocations that failed and that the target survived, as one that tries smaller batches until one fits."""

    count: int
    reserved_bytes: int | None
    """Most bytes that the allocator held from the first allocation after the last failure on; None where no step of an
    optimizer followed."""


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One of several ranks that were probed."""

    rank: int
    outcome: Outcome
    peak: Bytes | None
    """Peak of the rank; None, like the margin, where nothing was measured."""
    margin_bytes: int | None
    message: str = ""
    """What failed, for an outcome other than ``fits``."""


POINTS: Final = 400
"""Points of a curve at most: wide enough for a page, small enough to be kept with every result."""


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """Live and reserved bytes over the events of a run, cut into equal slices; all fields are equally long.

    A report lays two runs over each other by these, without their snapshots.
    """

    requested_bytes: tuple[int, ...]
    """The most requested bytes alive at once in each slice."""
    reserved_bytes: tuple[int, ...]
    """The most that the allocator held in each slice."""
    iterations: tuple[int, ...]
    """The iteration in which each slice begins; -1 before the first."""

    @classmethod
    def of(cls, timeline: Timeline, points: int = POINTS) -> Self | None:
        """Return the curves of ``timeline``; None where nothing was recorded."""
        import numpy as np

        from oomscope.snapshot.accounting.timeline import iterations_of, slice_starts

        if not len(timeline.requested):
            return None
        starts = slice_starts(len(timeline.requested), points)
        return cls(
            requested_bytes=tuple(np.maximum.reduceat(timeline.requested, starts).tolist()),
            reserved_bytes=tuple(np.maximum.reduceat(timeline.reserved, starts).tolist()),
            iterations=tuple(iterations_of(timeline.trace)[starts].tolist()),
        )


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """One rank's measurement. Where nothing was measured its numbers are None: nothing is claimed of the card."""

    backend: MeasuredOn
    outcome: Outcome
    rank: int = 0
    world_size: int = 1
    gpu: str | None = None
    limit_bytes: int | None = None
    """Bytes of the card in all."""
    non_torch_bytes: int | None = None
    other_process_bytes: int | None = None
    available_bytes: int | None = None
    """D: limit_bytes - non_torch_bytes - other_process_bytes."""
    peak: Peak | None = None
    reserved_peak: ReservedPeak | None = None
    end_requested_bytes: int | None = None
    end_allocated_bytes: int | None = None
    """torch's allocated_bytes.all.current after the last step."""
    phases: tuple[PhaseBytes, ...] = ()
    oom: Oom | None = None
    verdict: Verdict | None = None
    survived: SurvivedFailures | None = None
    demand_bytes: int | None = None
    """After an OOM: the peak of requested bytes of the same run without a limit; null where it was not run."""
    demand_peak: Peak | None = None
    """The peak of the run without a limit, with its lines; it is also run if the allocator had to empty its cache for
    the target to fit. Null where it was not run."""
    demand_step: StepPeak | None = None
    """Beside demand_peak: the peak of the optimizer's step in the same run; null where there was no step."""
    demand_cut: bool = False
    """The run without a limit was wanted but was cut off (time-out, kill, crash); a new probe may have it."""
    failure: Failure | None = None
    snapshot: str | None = None
    iterations: int | None = None
    """Training iterations that ran whole; null where that is not known, or the run failed."""
    unstepped: int | None = None
    """Optimizers of a program that had not stepped when it was ended: their gradients and states are not measured. Null
    where the target is no program."""
    events: int | None = None
    unknown_reads: int | None = None
    """Reads of values that a virtual card does not compute. Where there are any, a further whole run was compared."""
    truncated: bool = False
    """Whether the recorded ring wrapped: the beginning of the trace is missing."""
    timeline: tuple[int, ...] = ()
    """Requested bytes, maximum in each of up to 120 equal slices of the events."""
    curves: RunCurves | None = None
    """Live and reserved bytes in up to 400 slices, with their iterations; null where nothing was recorded."""
    pinned_bytes: int | None = None
    """Peak pinned host bytes; after an OOM those of the same run without a limit, where it was run."""
    flops: dict[str, int] = field(default_factory=dict)
    """``model`` and ``recompute`` floating-point operations of an iteration on this rank."""
    cost: dict[str, float] = field(default_factory=dict)
    """Estimated seconds of an iteration of this rank by part, and the bytes that leave the card
    (``oomscope.model.cost.StepCost``); empty for a harness, in fp32 and for a card whose speed is not known."""
    step_time_s: float | None = None
    tflops_per_s: float | None = None
    num_alloc_retries: int | None = None
    segments: int | None = None
    allocator_conf: str | None = None
    """The PYTORCH_ALLOC_CONF that was in force; empty for the defaults."""
    variables: dict[str, str] = field(default_factory=dict)
    """Other environment variables in force that change the sizes that torch allocates, such as
    CUBLAS_WORKSPACE_CONFIG; empty where none is set."""
    versions: dict[str, str] = field(default_factory=dict)
    interpreter: str | None = None
    """The Python that ran a program or a command; null for other targets, and where it is not known."""
    files_outside: tuple[str, ...] | None = ()
    """Files outside the checkout that a harness, an entry or a program opened to read, also missing ones: the first
    1,000 that Python opened, without installed packages. Null if one of them changed during the run."""
    wall_s: float = 0.0
    worker_rss_bytes: int = 0
    """Peak resident host memory of the process that ran the target."""
    ranks: tuple[RankSummary, ...] = ()
    """Every rank that was probed, where this is the worst of several."""
    pipeline_stages: int | None = None
    """Pipeline stages of the bundled transformer, whose ranks differ by stage alone; null for your own code."""
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def margin_bytes(self) -> int | None:
        """Device bytes left at the peak of reserved memory (negative is impossible); None where it is not known."""
        held = self.peak.reserved_bytes if self.peak else None
        return None if held is None or self.available_bytes is None else self.available_bytes - held

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope probe --json``."""
        return asdict(self) | {"margin_bytes": self.margin_bytes}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ProbeResult:
        """Read back what :meth:`to_json` wrote.

        Raises:
            ValueError: it is no such document; names the first field that is wrong.
        """
        from pydantic import ValidationError

        try:
            return _adapter().validate_python(document)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter() -> TypeAdapter[ProbeResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(ProbeResult)


def without_measurement(job: ProbeJob, backend: MeasuredOn, failure: Failure | None) -> ProbeResult:
    """Return the result of ``job`` where nothing was measured."""
    return ProbeResult(backend=backend, outcome="error", rank=job.rank, world_size=job.world_size, failure=failure)
