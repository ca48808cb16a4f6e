"""The worker's work on a fake session: every way in which a target can end, and what is derived from the recording."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from oomscope.probe import measure as measure_module
from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.probe.measure import measure
from oomscope.probe.measurement import AllocatorStats, DeviceBudget, FailedAllocation, Measurement, Unanswered
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.result import ProbeResult, RankSummary
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action, Block, Category, Frame, Moment, Segment, Snapshot
from oomscope.units import Bytes, GiB, MiB
from tests.trace_builder import TraceBuilder

CPU = torch.device("cpu")
FORWARD = Moment("forward", 0, -1)
FIRST, SECOND = 0x1000, 0x1000 + 64 * MiB
SEGMENT = Segment(
    device=0,
    address=FIRST,
    total_size=128 * MiB,
    stream=0,
    segment_type="large",
    is_expandable=False,
    blocks=(
        Block(address=FIRST, size=64 * MiB, requested_size=64 * MiB, state="active_allocated"),
        Block(address=SECOND, size=64 * MiB, requested_size=32 * MiB, state="inactive"),
    ),
)


@dataclass
class FakeSession:
    """Serves a script of allocations: 64 MiB that stay, 32 MiB that go, and 2 GiB more on a card without a limit."""

    settings: SessionSettings
    repo: Path
    device: torch.device = CPU
    log: list[str] = field(default_factory=list)
    watched: list[object] = field(default_factory=list)
    oom: FailedAllocation | None = None
    retries: int = 0
    unanswered: Unanswered = field(default_factory=Unanswered)

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *_):
        self.log.append("exit")

    @contextmanager
    def iteration(self, index: int):
        self.log.append(f"iteration {index}")
        yield

    def watch(self, model, optimizer) -> None:
        self.watched.append((model, optimizer))

    def measurement(self) -> Measurement:
        stack = (Frame("/usr/lib/torch/x.py", 1, "relu"), Frame(str(self.repo / "model.py"), 7, "forward"))
        builder = TraceBuilder()
        builder.event(Action.SEGMENT_ALLOC, FIRST, 128 * MiB)
        builder.event(
            Action.ALLOC, FIRST, 64 * MiB, stack=stack, moment=FORWARD, category=Category.PARAMETER, module="mlp.3"
        )
        builder.event(Action.ALLOC, SECOND, 32 * MiB, stack=stack, moment=FORWARD, category=Category.TEMPORARY)
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            builder.event(action, SECOND, 32 * MiB, moment=Moment("backward", 0, -1))
        if self.settings.unlimited:
            builder.event(Action.ALLOC, 0x9000000, 2 * GiB, stack=stack, moment=FORWARD, category=Category.TEMPORARY)
        return Measurement(
            snapshot=Snapshot(segments=(SEGMENT,), traces=(builder.build(),)),
            device=DeviceBudget(gpu="toy", limit_bytes=GiB, non_torch_bytes=24 * MiB, other_process_bytes=0),
            stats=AllocatorStats(
                allocated_bytes_peak=96 * MiB,
                active_bytes_peak=96 * MiB,
                reserved_bytes_peak=4 * GiB if self.settings.unlimited else 128 * MiB,
                # On a card without a limit a block of 1 GiB was freed, but is still pending on another stream.
                requested_bytes_peak=64 * MiB + 3 * GiB if self.settings.unlimited else 96 * MiB,
                requested_bytes_current=64 * MiB,
                allocated_bytes_current=64 * MiB,
                num_ooms=1 if self.oom else 0,
                num_alloc_retries=0 if self.settings.unlimited else self.retries,
            ),
            oom=None if self.settings.unlimited else self.oom,
            pinned_bytes=3 * MiB if self.settings.unlimited else MiB,
            notes=("a note of the backend",),
        )


class Bench:
    """Measures a harness, given as source text, on fake sessions."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.repo = directory / "repo"
        self.repo.mkdir()
        self.sessions: list[FakeSession] = []
        self.steps: list[Progress] = []
        self.kept: list[ProbeResult] = []
        self.oom: FailedAllocation | None = None
        self.retries = 0

    def __call__(self, source: str, *, session=FakeSession, **fields) -> ProbeResult:
        harness = self.repo.parent / "harness.py"
        harness.write_text(
            "import torch, oomscope\nOOM = torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')\n"
            + source
        )
        job = ProbeJob(
            target=HarnessTarget(harness=str(harness), repo=str(self.repo)),
            **{"backend": "virtual", "rank": 0, **fields},
        )

        def opened(settings, backend):
            self.sessions.append(session(settings, self.repo, oom=self.oom, retries=self.retries))
            return self.sessions[-1]

        self.monkeypatch.setattr(measure_module, "open_session", opened)
        return measure(job, progress=self.steps.append, keep=self.kept.append)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.setattr(measure_module, "seed_everything", lambda seed: None)
    _run_here(monkeypatch)
    bench = Bench(tmp_path, monkeypatch)
    yield bench
    for name in [name for name in sys.modules if name.startswith(("<oomscope", "the_repo_"))]:
        del sys.modules[name]


OF_THE_PROBE = {"rank", "world_size", "wall_s", "worker_rss_bytes", "schema_version", "truncated", "demand_cut"}
"""Numbers of a result that say nothing of the card or of what the target did on it."""

STEPPING = (
    "def setup(ctx):\n"
    "    model = torch.nn.Linear(1, 1, device='cpu')\n"
    "    return oomscope.Target({step}, model=model, optimizer=torch.optim.SGD(model.parameters()))\n"
)
RAISING = "def setup(ctx):\n    def step():\n        {step}\n    return step\n"


def test_a_target_that_fits(bench: Bench) -> None:
    result = bench(STEPPING.format(step="lambda: None"), iterations=3)
    assert result.outcome == "fits"
    assert result.failure is None is result.oom
    (session,) = bench.sessions
    assert session.log == ["enter", "iteration 0", "iteration 1", "iteration 2", "exit"]
    ((model, optimizer),) = session.watched
    assert (type(model).__name__, type(optimizer).__name__) == ("Linear", "SGD")
    assert bench.kept == [result], "before its process has ended"
    stages = list(dict.fromkeys(step.stage for step in bench.steps))
    assert stages == ["import", "setup", "step", "analyse"]


def test_the_result_is_derived_from_the_recording(bench: Bench) -> None:
    result = bench(STEPPING.format(step="lambda: None"))
    peak = result.peak
    assert (peak.requested_bytes, peak.reserved_bytes, peak.phase, peak.iteration) == (
        96 * MiB,
        128 * MiB,
        "forward",
        0,
    )
    assert str(peak.site) == "model.py:7 forward"
    assert peak.categories == {"parameter": 64 * MiB, "temporary": 32 * MiB}
    assert [(row.site.module, row.bytes, row.category) for row in peak.sites] == [
        ("mlp.*", 64 * MiB, "parameter"),
        ("", 32 * MiB, "temporary"),
    ]
    held = result.reserved_peak
    assert (held.reserved_bytes, held.requested_bytes, held.event) == (128 * MiB, 96 * MiB, peak.event)
    assert result.available_bytes == 1000 * MiB
    assert result.margin_bytes == 872 * MiB
    assert [(row.phase, row.requested_bytes) for row in result.phases] == [
        ("unknown", 0),
        ("forward", 96 * MiB),
        ("backward", 96 * MiB),
    ]
    assert max(result.timeline) == 96 * MiB
    assert result.verdict.kind == "headroom"
    assert result.notes == ("a note of the backend",)
    assert ProbeResult.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ("raise KeyError('at import')", "import", "KeyError: 'at import'"),
        ("x = 1", "usage", "defines no function setup"),
        ("setup = 3", "usage", "defines no function setup"),
        ("def setup(ctx)", "usage", "SyntaxError"),
        ("import the_repo_broken\ndef setup(ctx): return None", "import", "SyntaxError"),
        ("def setup(ctx): raise ValueError('two\\nlines')", "setup", "ValueError: two lines"),
        ("def setup(ctx): return None", "setup", "setup returned nothing, not a target"),
        ("def setup(ctx): return 7", "setup", "an object of type int"),
        (
            "def setup(ctx): return oomscope.Target(None)",
            "setup",
            "the step of the Target that setup returned is nothing",
        ),
        ("def setup(ctx): return oomscope.Target(5)", "setup", "harness.py: the step of the Target"),
        ("def setup(): return None", "usage", "setup cannot be called with ctx alone"),
        ("def setup(ctx, device): return None", "usage", "setup cannot be called with ctx alone"),
        (RAISING.format(step="raise oomscope.errors.NothingOnDeviceError('all is on the host')"), "nothing", "host"),
        ("def setup(ctx): raise oomscope.errors.ConfigError('its own file is wrong')", "untestable", "its own file"),
        ("def setup(ctx): raise oomscope.errors.TargetError('no data')", "setup", "no data"),
        (RAISING.format(step="raise ValueError('in step')"), "step", "harness.py:5 in step"),
        (RAISING.format(step="raise SystemExit(4)"), "step", "called sys.exit(4)"),
    ],
)
def test_a_failing_target_is_typed_and_described_in_one_line(bench: Bench, source: str, kind: str, said: str) -> None:
    (bench.repo / "the_repo_broken.py").write_text("def (:")
    result = bench(source)
    assert (result.outcome, result.failure.kind) == ("error", kind)
    assert said in result.failure.message
    assert "\n" not in result.failure.message
    numbers = {name for name, value in result.to_json().items() if isinstance(value, (int, float))}
    assert numbers == OF_THE_PROBE, "nothing measured, nothing claimed"
    assert result.gpu is result.allocator_conf is result.peak is result.reserved_peak is None


FAILED = FailedAllocation(requested_bytes=2 * GiB, message="CUDA out of\nmemory.", moment=FORWARD)


def test_out_of_memory_is_a_result_and_the_demand_is_measured(bench: Bench) -> None:
    bench.oom = FAILED
    (bench.repo / "count").write_text("")
    source = RAISING.format(step="import pathlib, sys; runs = pathlib.Path(sys.path[0], 'count'); "
                                 "runs.write_text(runs.read_text() + 'x')\n"
                                 "        if len(runs.read_text()) == 1: raise OOM")  # fmt: skip
    result = bench(source, iterations=1)
    assert result.outcome == "oom"
    assert (result.oom.requested_bytes, result.oom.phase, result.oom.message) == (
        2 * GiB,
        "forward",
        "CUDA out of memory.",
    )
    assert [session.settings.unlimited for session in bench.sessions] == [False, True]
    assert result.demand_bytes == 64 * MiB + 2 * GiB
    assert bench.steps[-1] == Progress(stage="demand", done=1, total=1)
    assert result.verdict.kind == "capacity"
    (kept,) = bench.kept
    unknown = {"demand_bytes": None, "demand_peak": None, "demand_cut": True, "pinned_bytes": MiB}
    assert kept == replace(result, verdict=kept.verdict, **unknown)
    assert result.pinned_bytes == 3 * MiB, "of the whole run, as the demand"
    assert result.demand_peak is not None
    assert result.demand_peak.requested_bytes == sum(row.bytes for row in result.demand_peak.sites)
    assert result.demand_peak.requested_bytes == result.demand_bytes


def test_the_run_without_a_limit_tells_what_a_step_of_the_optimizer_needs(bench: Bench) -> None:
    bench.retries = 1
    result = bench(STEPPING.format(step="lambda: None"), session=SteppingSession)
    (row,) = result.demand_step.temporaries.rows
    assert (result.demand_peak.phase, result.demand_peak.requested_bytes) == ("backward", 96 * MiB)
    assert (result.demand_step.iteration, result.demand_step.requested_bytes) == (1, 80 * MiB)
    assert result.demand_step.categories == {"optimizer_state": 64 * MiB, "temporary": 16 * MiB}
    assert (row.category, row.bytes) == ("temporary", (16 * MiB,))


class SteppingSession(FakeSession):
    """Its second step needs most of the steps, and its second backward pass most of all."""

    def measurement(self) -> Measurement:
        builder = TraceBuilder()
        builder.event(Action.SEGMENT_ALLOC, FIRST, 128 * MiB)
        state = Moment("optimizer", 0, -1)
        builder.event(Action.ALLOC, FIRST, 64 * MiB, moment=state, category=Category.OPTIMIZER_STATE)
        for phase, size in (("backward", 32 * MiB), ("optimizer", 16 * MiB)):
            for action in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED):
                moment = Moment(phase, 1, -1)
                builder.event(action, SECOND, size, moment=moment, category=Category.TEMPORARY)
        return replace(super().measurement(), snapshot=Snapshot(segments=(), traces=(builder.build(),)))


class FirstOfTwo(FakeSession):
    """Rank 0 is reported, and rank 1 needs more."""

    def measurement(self) -> Measurement:
        needs = {0: 3 * GiB, 1: 4 * GiB}
        ranks = (
            RankSummary(
                rank=rank, outcome="fits", peak=Bytes(requested_bytes=size, reserved_bytes=size), margin_bytes=0
            )
            for rank, size in needs.items()
        )
        return replace(super().measurement(), rank=0, world_size=2, ranks=tuple(ranks))


def test_the_run_without_a_limit_reports_the_rank_of_the_first_and_says_which_needs_more(bench: Bench) -> None:
    bench.oom = FAILED
    bench(RAISING.format(step="raise OOM"), session=FirstOfTwo, iterations=1)
    assert [session.settings.rank for session in bench.sessions][:2] == [None, 0]
    bench.retries, bench.oom = 3, None
    result = bench(STEPPING.format(step="lambda: None"), session=FirstOfTwo)
    assert "rank 1 needs more than this one, 4.00 GiB in the run without a limit: --rank 1 reports it" in result.notes


def test_a_run_that_fits_by_emptying_the_cache_is_run_once_more_without_a_limit(bench: Bench) -> None:
    bench.retries = 3
    source = STEPPING.format(step="lambda: None")
    result = bench(source)
    assert [session.settings.unlimited for session in bench.sessions] == [False, True]
    assert (result.outcome, result.demand_bytes, result.num_alloc_retries) == ("fits", None, 3)
    assert result.demand_peak is not None
    assert (result.peak.reserved_bytes, result.demand_peak.reserved_bytes) == (128 * MiB, 4 * GiB)
    assert bench.kept == [replace(result, demand_peak=None, demand_cut=True)]
    assert bench(source, measure_demand=False).demand_peak is None


class FillingSession(FakeSession):
    """Keeps the last five of what its iterations leave."""

    def measurement(self) -> Measurement:
        builder = TraceBuilder()
        builder.event(Action.SEGMENT_ALLOC, FIRST, 128 * MiB)
        made = self.settings.iterations or 3
        for number in range(made):
            moment = Moment("optimizer", number, -1)
            builder.event(Action.ALLOC, FIRST + number * 8 * MiB, 8 * MiB, moment=moment, category=Category.KEPT)
            for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED) if number >= 5 else ():
                builder.event(action, FIRST + (number - 5) * 8 * MiB, 8 * MiB, moment=moment)
        plain = super().measurement()
        peak = min(made, 6) * 8 * MiB
        return replace(
            plain,
            snapshot=Snapshot(segments=(), traces=(builder.build(),)),
            stats=replace(plain.stats, requested_bytes_peak=peak, reserved_bytes_peak=peak),
        )


def test_a_longer_run_that_needs_more_is_what_is_reported_and_written(bench: Bench, tmp_path: Path) -> None:
    bench.retries = 1
    fields = {"session": FillingSession, "iterations": 3, "snapshot_path": str(tmp_path / "out.pickle")}
    result = bench(STEPPING.format(step="lambda: None"), **fields)
    assert (result.outcome, result.verdict.tags, result.iterations) == ("fits", (), 9)
    assert (result.peak.requested_bytes, result.margin_bytes) == (48 * MiB, 952 * MiB)
    assert len(load_snapshot(tmp_path / "out.pickle").traces[0]) == result.events
    assert [(each.settings.iterations, each.settings.unlimited) for each in bench.sessions] == [
        (None, False),
        (9, False),
        (9, True),
    ], "the demand is that of the same run"
    assert result.notes[1:3] == (
        "memory that grew in the first iterations stops growing in a run of 9: it is no leak",
        "the run of 9 iterations is reported, since it needs more memory than the first one",
    )


class FragmentedSession(FakeSession):
    """64 MiB are live of 1000 MiB when 500 MiB are refused."""

    def measurement(self) -> Measurement:
        refused = FailedAllocation(requested_bytes=500 * MiB, message="", moment=Moment("optimizer", 1, -1))
        conf = self.settings.allocator_conf
        return replace(super().measurement(), oom=refused if conf != CURE else None, allocator_conf=conf)


CURE = "expandable_segments:True,large_segment_size_mb:12"
FAILS_BUT_UNDER_THE_CURE = RAISING.format(
    step=f"import os\n        if os.environ.get('PYTORCH_ALLOC_CONF') != {CURE!r}: raise OOM"
)


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """Let every run happen here, on a card, so that the test sees its session."""
    monkeypatch.setattr(measure_module, "resolve_backend", lambda job: job.backend)
    _run_here(monkeypatch)
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.setenv(name, "")


def test_after_fragmentation_the_whole_target_is_run_under_settings_that_may_cure_it(
    bench: Bench, in_this_process: None
) -> None:
    fields = {"session": FragmentedSession, "backend": "virtual", "measure_demand": False, "iterations": 1}
    result = bench(FAILS_BUT_UNDER_THE_CURE, confirm=None, **fields)
    assert result.outcome == "oom", "what it does under another setting is not what it does"
    confs = [session.settings.allocator_conf for session in bench.sessions]
    assert confs == ["", "expandable_segments:True", CURE]
    verdict = result.verdict
    assert (verdict.kind, verdict.cured_by, verdict.confirmed) == ("fragmentation", (CURE,), True)
    assert [(row.name, row.how) for row in verdict.tried[1:3]] == [("expandable_segments:True", "run"), (CURE, "run")]
    assert verdict.tried[1].failed_in == "optimizer of iteration 1"
    assert f"A second run went to the end under {CURE} with 872.00 MiB to spare" in verdict.headline
    assert [step.done for step in bench.steps if step.stage == "cures" and not step.total] == [0, 0, 0, 1, 0, 0]
    assert {kept.verdict.confirmed for kept in bench.kept} == {False}, "kept before the runs"
    assert ProbeResult.from_json(result.to_json()) == result
    bench.sessions.clear()
    assert not bench(FAILS_BUT_UNDER_THE_CURE, confirm=False, **fields).verdict.confirmed
    assert len(bench.sessions) == 1


@pytest.mark.parametrize(("backend", "confirm", "runs"), [("cuda", None, 1), ("cuda", True, 3), ("virtual", True, 3)])
def test_on_a_real_card_settings_are_run_on_demand_alone(
    bench: Bench, in_this_process: None, backend: str, confirm: bool | None, runs: int
) -> None:
    fields = {"session": FragmentedSession, "backend": backend, "measure_demand": False, "iterations": 1}
    bench(FAILS_BUT_UNDER_THE_CURE, confirm=confirm, **fields)
    assert len(bench.sessions) == runs


def test_an_out_of_memory_error_that_the_target_survives_is_a_note(bench: Bench) -> None:
    bench.oom = FAILED
    result = bench(RAISING.format(step="pass"))
    assert (result.outcome, result.oom) == ("fits", None)
    assert "an allocation failed once; the target continued" in result.notes


CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"
ELSEWHERE = [
    (f"RuntimeError('{CUBLAS}')", "outside", f'("{CUBLAS}")'),
    ("RuntimeError('NCCL error in: init.cpp, Cuda failure 2')", "outside", "A library's own device allocation failed"),
    ("MemoryError()", "host", 'Host memory ran out ("MemoryError")'),
    ("torch.OutOfMemoryError('mine')", "outside", 'The program raised torch.OutOfMemoryError ("mine")'),
    ("OOM", "outside", "no allocation of PyTorch's allocator failed"),
]


@pytest.mark.parametrize(("error", "kind", "said"), ELSEWHERE)
def test_what_the_allocator_did_not_refuse_is_neither_capacity_nor_fragmentation(
    bench: Bench, error: str, kind: str, said: str
) -> None:
    result = bench(RAISING.format(step=f"raise {error}"), iterations=3)
    assert (result.outcome, result.verdict.kind) == ("oom", kind)
    assert said in result.verdict.headline
    assert (result.oom.iteration, result.oom.site.function, result.oom.event) == (0, "step", None)
    assert result.oom.requested_bytes == result.verdict.requested_bytes == (2 * GiB if error == "OOM" else None)
    assert not result.verdict.tried
    assert not result.verdict.gaps
    assert len(bench.sessions) == 1, "a card without a limit has no more to say"


def test_an_error_of_the_programs_own_is_not_an_earlier_failure_that_it_survived(bench: Bench) -> None:
    bench.oom = FAILED
    result = bench(RAISING.format(step="raise torch.OutOfMemoryError('mine')"))
    assert (result.verdict.kind, result.oom.message) == ("outside", "mine")
    assert "an allocation failed once; the target continued" in result.notes


def test_the_snapshot_is_written_once_and_named(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "out.pickle"
    result = bench(STEPPING.format(step="lambda: None"), snapshot_path=str(path))
    assert result.snapshot == str(path)
    snapshot = load_snapshot(path)
    assert len(snapshot.traces[0]) == result.events
    told, held = snapshot.provenance, sum(segment.total_size for segment in snapshot.segments)
    assert (told.rank, told.world_size, told.torch_version) == (result.rank, result.world_size, installed_torch())
    [card] = told.cards
    assert card.total_bytes == result.limit_bytes
    assert card.free_bytes == result.available_bytes - held


def _run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each run in this process, which then sees the sessions; its environment stays as it is."""
    monkeypatch.setattr(measure_module, "ForkedRun", measure_module.InlineRun)
    monkeypatch.setattr(measure_module.children, "variables", lambda _environment: {})
