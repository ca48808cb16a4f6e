"""Jobs and results cross the process boundary and the cache as JSON, and come back as they were."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.load import load_preset
from oomscope.errors import ExitCode
from oomscope.probe.git_bisect import git_bisect_code, git_bisect_code_of
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob, bundled_job, checkout_job
from oomscope.probe.result import (
    ErrorKind,
    Failure,
    Oom,
    Peak,
    ProbeResult,
)
from oomscope.probe.targets.context import Context
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import format_size
from oomscope.virtual.cards import CARDS

words, sizes, seconds = st.text(max_size=12), st.integers(0, 2**50), st.floats(0, 1e6)


def with_fields(kind: type, *names: str, **chosen: st.SearchStrategy) -> st.SearchStrategy:
    """Return documents of a dataclass in which its required fields vary, and those of ``names``, by their types."""
    return st.builds(kind, **(dict.fromkeys(names, ...) | chosen))


OF_A_RESULT = ("reserved_peak", "phases", "failure", "timeline", "curves", "flops", "versions", "ranks", "notes")
results = with_fields(
    ProbeResult,
    *OF_A_RESULT,
    peak=st.none() | with_fields(Peak, "categories", "sites"),
    oom=st.none() | with_fields(Oom, "event"),
    verdict=st.none() | with_fields(Verdict, "cured_by", "gaps", "tried", "leak"),
    step_time_s=st.none() | seconds,
)
targets = st.builds(BundledTarget, config=st.dictionaries(words, sizes, max_size=3)) | st.builds(
    HarnessTarget, harness=words, repo=words
)
jobs = with_fields(ProbeJob, "limit_bytes", "confirm", "environment", "backend", target=targets, timeout_s=seconds)


@given(results)
def test_a_result_survives_json(result: ProbeResult) -> None:
    assert ProbeResult.from_json(json.loads(json.dumps(result.to_json()))) == result


@given(jobs)
def test_a_job_survives_json(job: ProbeJob) -> None:
    assert ProbeJob.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_margin_is_what_the_peak_of_reserved_memory_leaves() -> None:
    peak = Peak(
        requested_bytes=5,
        allocated_bytes=6,
        active_bytes=6,
        reserved_bytes=8,
        iteration=0,
        phase="forward",
        microbatch=0,
        site=None,
        event=1,
    )
    result = ProbeResult(backend="virtual", outcome="fits", available_bytes=20, peak=peak)
    assert result.margin_bytes == 12
    assert replace(result, peak=None).margin_bytes is replace(result, available_bytes=None).margin_bytes is None


@pytest.mark.parametrize(
    ("outcome", "kind", "code"),
    [
        ("fits", None, 0),
        ("oom", None, 1),
        ("error", "import", 125),
        ("error", "setup", 125),
        ("error", "step", 125),
        ("error", "untestable", 125),
        ("error", "crash", 125),
        ("error", "timeout", 125),
        ("error", "killed", 133),
        ("error", "unfit", 133),
        ("error", "internal", 198),
        ("error", None, 133),
    ],
)
def test_git_bisect_gets_good_bad_untestable_or_stop(outcome: str, kind: str | None, code: int) -> None:
    failure = Failure(kind=kind, message="") if kind else None
    assert git_bisect_code(ProbeResult(backend="virtual", outcome=outcome, failure=failure)) == code


@pytest.mark.parametrize("code", [code for code in ExitCode if code is not ExitCode.OK])
def test_no_error_of_ours_is_an_answer_to_git_bisect(code: ExitCode) -> None:
    assert 128 <= git_bisect_code_of(code) <= 255


CHANGED = {
    "probe.backend=virtual": ("backend", "virtual"),
    "probe.iterations=7": ("iterations", 7),
    "probe.seed=8": ("seed", 8),
    "probe.timeout_s=9": ("timeout_s", 9.0),
    "probe.max_entries=10": ("max_entries", 10),
    "probe.max_frames=11": ("max_frames", 11),
    "device.gpu=a100-80gb": ("gpu", "a100-80gb"),
    "device.count=12": ("devices", 12),
    "device.limit=12GiB": ("limit_bytes", 12 * 1024**3),
    "device.non_torch_bytes=13MiB": ("non_torch_bytes", 13 * 1024**2),
    "device.other_process_bytes=14MiB": ("other_process_bytes", 14 * 1024**2),
    "device.cublas_workspace_config=:16:8": ("cublas_workspace_config", ":16:8"),
    "device.stream_lag=15": ("stream_lag", 15),
    "device.address_policy=scattered": ("address_policy", "scattered"),
    "device.compute_values=true": ("compute_values", True),
    "allocator.conf=expandable_segments:True": ("allocator_conf", "expandable_segments:True"),
}
CHOSEN_BY_THE_CALLER = {
    "target",
    "rank",
    "world_size",
    "in_world",
    "snapshot_path",
    "measure_demand",
    "confirm",
    "environment",
}


def test_every_setting_reaches_the_job() -> None:
    config = load_preset("gpt-tiny", list(CHANGED)).config
    job = bundled_job(config, rank=0)
    assert {name: getattr(job, name) for name, _ in CHANGED.values()} == dict(CHANGED.values())
    assert job.target.config == config.model_dump(mode="json")


def test_every_field_of_a_job_is_a_setting_or_the_callers_choice() -> None:
    assert {field.name for field in fields(ProbeJob)} == {name for name, _ in CHANGED.values()} | CHOSEN_BY_THE_CALLER


def test_a_harness_has_its_own_world() -> None:
    of_the_model = "parallel.data_parallel_size=8"
    config = load_preset("gpt-tiny", [*CHANGED, "probe.world_size=8", of_the_model], enforce=False).config
    target = HarnessTarget(harness="/h.py", repo="/repo")
    assert checkout_job(target, load_preset("gpt-tiny", [of_the_model]).config).world_size == 1
    job = checkout_job(target, config)
    assert (job.target, job.rank, job.world_size, job.iterations) == (target, 0, 8, 7)


DOCS = Path(__file__).parents[3] / "docs"


def test_cards_failures_and_the_context_of_a_harness_are_listed() -> None:
    page = (DOCS / "probe.md").read_text()
    table = page.split("\n## A harness\n")[1].split("\n##")[0]
    for name, card in CARDS.items():
        assert f"| `{name}` | {format_size(card.total_bytes)} |" in page
    for kind in get_args(ErrorKind):
        assert f"`{kind}`" in page
    for field in fields(Context):
        assert f"`{field.name}`" in table
