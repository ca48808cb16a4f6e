"""The examples of ``docs/advise.md`` are what their commands print.

Sections, order, estimated times, overrides and remarks are held to runs whose probes are played, with the page's sizes
masked; sizes are held to a real probe of one row.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from pathlib import Path

import pytest
import torch

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import Oom, Peak, ProbeResult
from oomscope.probe.tuning import variants
from oomscope.probe.tuning.shorthand import recompute_overrides
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import GiB, format_size
from tests.forked import oomscope

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZE = re.compile(r"-?\d+(?:\.\d+)? (?:[KMG]i)?B\b")
TORCH = "2.15"
"""Whose operations and allocator rules the bytes in the pages are."""


def example(command: str) -> tuple[list[str], str]:
    """Return the words of the first example of ``command``, and what it prints."""
    text = (DOCS / "advise.md").read_text(encoding="utf-8")
    found = re.search(rf"```console\n\$ oomscope ({command} .+)\n((?:.*\n)+?)```", text)
    assert found is not None
    return shlex.split(found[1]), found[2]


def said(report: str) -> list[str]:
    """Return the words of a report, sizes masked, in any order: how wide sizes are decides where cells are broken."""
    return sorted(re.sub(r"[─█]+", " ", SIZE.sub("SIZE", report)).split())


def requested_bytes(job: ProbeJob) -> int:
    config = job.target.config
    recompute, offload, optimizer = config["recompute"], config["offload"], config["optimizer"]
    live = {None: 33.0, "selective": 27.0, "full": 25.0}[recompute["recompute_granularity"]]
    live = 30.5 if recompute["recompute_method"] == "block" else live
    live -= 2.5 * offload["fine_grained_activation_offloading"]
    live -= 2.5 * offload["cpu_offloading"] * offload["cpu_offloading_num_layers"] / 8
    return round((live - 7 * optimizer["optimizer_cpu_offload"] * optimizer["optimizer_offload_fraction"]) * GiB)


def played(job: ProbeJob, stop: threading.Event) -> ProbeResult:
    """Measure sizes like those of the pages, without a process; fragments take a GiB without expandable segments."""
    live, available = requested_bytes(job), (job.limit_bytes or 80 * GiB) - GiB
    config = job.target.config
    is_pinned = (
        config["offload"]["fine_grained_activation_offloading"]
        or config["offload"]["cpu_offloading"]
        or config["optimizer"]["optimizer_cpu_offload"]
    )
    expandable = "expandable_segments:True" in job.allocator_conf
    fits = live <= available - (0 if expandable else GiB)
    peak = Peak(
        requested_bytes=live,
        allocated_bytes=live,
        active_bytes=live,
        reserved_bytes=min(live, available),
        iteration=1,
        phase="backward",
        microbatch=0,
        site=None,
        event=1,
    )
    verdict = Verdict(
        kind="headroom" if fits else "capacity" if expandable else "fragmentation",
        headline="",
        requested_bytes=None,
        live_requested_bytes=live,
        available_bytes=available,
        reserved_bytes=peak.reserved_bytes,
    )
    return ProbeResult(
        backend="virtual",
        outcome="fits" if fits else "oom",
        available_bytes=available,
        peak=peak,
        verdict=verdict,
        oom=None if fits else Oom(requested_bytes=1, iteration=1, phase="", microbatch=0, site=None, message=""),
        demand_bytes=None if fits else live,
        pinned_bytes=GiB if is_pinned else 0,
    )


@pytest.mark.parametrize("command", ["advise", "sweep"])
def test_the_report_in_the_page_is_what_its_command_prints(command: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(variants, "launched", played)
    words, report = example(command)
    assert run([*words, "--fresh", "--quiet"]) == ExitCode.OK
    assert said(capsys.readouterr().out) == said(report)


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith(TORCH), reason=f"the bytes in the pages are torch {TORCH}'s")
def test_sizes_in_the_pages_are_what_a_probe_measures() -> None:
    words, report = example("sweep")
    own = [word for word in words[1:] if not word.startswith(("recompute=", "offload="))]
    done = oomscope("probe", *own, *recompute_overrides("mlp"), "--json", "--quiet")
    assert done.returncode == ExitCode.OK, done.stderr
    peak = json.loads(done.stdout)["peak"]
    measured = [format_size(peak["requested_bytes"]), format_size(peak["reserved_bytes"])]
    (row,) = (line for line in report.splitlines() if re.match(r"mlp +none ", line))
    assert SIZE.findall(row)[:2] == measured
    _, advice = example("advise")
    (row,) = (line for line in advice.splitlines() if line.startswith("recompute mlp "))
    assert [SIZE.findall(row)[0], SIZE.findall(row)[2]] == measured
