"""A command that measures by itself: what it may be, and what status, output and snapshots say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import TargetError
from oomscope.probe.analysis.failures import Refusal
from oomscope.probe.job import CommandTarget, ProbeJob
from oomscope.probe.result import ProbeResult
from oomscope.probe.targets.command import (
    CommandOutput,
    answer,
    argv_of,
    check_command,
    failure_of,
    metric_in,
    read_output,
    variables_of,
    words_of,
)
from oomscope.probe.targets.command_snapshots import stamps_of, written_since
from oomscope.probe.targets.harness import HarnessError
from oomscope.snapshot.explain.explanation import DeviceExplanation
from oomscope.snapshot.read.load import load_snapshot
from oomscope.units import GiB, MiB
from tests.unit.snapshot.explained import explain


def target(command: str = "true", **fields: str) -> CommandTarget:
    return CommandTarget(command=command, repo="/nowhere", **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": ""}, "does not name a program"),
        ({"command": "''"}, "does not name a program"),
        ({"command": "a 'b"}, "cannot be split: no closing quotation"),
        ({"command": "no-such-program-anywhere x"}, "no program no-such-program-anywhere on your PATH"),
        ({"metric_regex": "("}, "is not a regular expression"),
        ({"metric_regex": r"peak \d+"}, "has 0 groups"),
        ({"metric_regex": r"(\d+) (\w+)"}, "has 2 groups"),
        ({"snapshot_glob": ""}, "does not name files in the checkout"),
        ({"snapshot_glob": "/tmp/*.pickle"}, "does not name files in the checkout"),
        ({"snapshot_glob": "out/../../*.pickle"}, "does not name files in the checkout"),
        ({"snapshot_glob": "*.pickle", "metric_regex": r"(\d+)"}, "both --metric-regex and --snapshot-glob"),
    ],
)
def test_what_cannot_be_run_or_read_is_refused_with_a_remedy(fields: dict[str, str], said: str) -> None:
    with pytest.raises(HarnessError) as refused:
        check_command(target(**fields))
    assert said in str(refused.value)
    assert refused.value.remedy


@given(st.lists(st.text(st.characters(blacklist_characters="\0"), max_size=6), min_size=1, max_size=4))
def test_words_are_those_that_a_shell_would_see(words: list[str]) -> None:
    if words[0]:
        assert words_of(shlex.join(words)) == words


def test_oomscope_is_the_one_that_runs() -> None:
    assert argv_of(target("sh -c 'a b'")) == ["sh", "-c", "a b"]
    argv = argv_of(target("oomscope probe x.yaml"))
    assert argv[0] == sys.executable
    assert argv[-2:] == ["probe", "x.yaml"]
    assert (Path(argv[-4]) / "oomscope" / "__init__.py").is_file()


PEAK = r"peak:? *([\d.,_]+ *\w*)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB"


def said(output: bytes, pattern: str = PEAK, before: bytes = b"") -> CommandOutput:
    with tempfile.TemporaryFile() as file:
        file.write(before + output)
        file.flush()
        return read_output(file.fileno(), len(before), re.compile(pattern))


@pytest.mark.parametrize(
    ("output", "size"),
    [
        (b"peak 12 MiB\n", 12 * MiB),
        (b"peak 1\npeak: 2\r\nnoise", 2),
        (b"peak 1; peak 3\n", 3),
        (b"\rstep 1 peak 5\rstep 2 peak 1.5MiB", 3 * MiB // 2),
        (b"\xff\xfe peak 7KiB", 7 * 1024),
        (b"peak 2048.0\n", 2048),
    ],
)
def test_the_last_match_counts(output: bytes, size: int) -> None:
    assert metric_in(said(output), PEAK)[0] == size


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (b"", re.escape(f"printed nothing that '{PEAK}' matches")),
        (b"peak 12.5", "a fraction without a unit; put the unit into the group"),
        (b"peak 3 parsecs", "which is not a size"),
        (b"peak .", "which is not a size"),
    ],
)
def test_what_is_no_number_of_bytes_is_the_commits_fault(output: bytes, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        metric_in(said(output), PEAK)


@pytest.mark.parametrize(
    "line", [OOM, OOM.replace("torch.", "torch.cuda."), OOM.replace("torch.OutOfMemoryError", "RuntimeError")]
)
def test_torchs_words_for_a_failure(line: str) -> None:
    found = said(f"[rank0]: {line}\nTraceback\n".encode()).refusal
    assert found is not None
    assert found.requested_bytes == 20 * MiB
    assert found.message.startswith("[rank0]: ")


FIXTURES = Path(__file__).parents[4] / "fixtures" / "snapshots"
NOTHING = CommandOutput()
REFUSED = CommandOutput(
    refusal=Refusal(failed_in="device", message="torch.OutOfMemoryError", requested_bytes=5, stack=())
)
PRINTED = CommandOutput(match=("7 MiB", "peak 7 MiB"))


def answered(
    repo: Path,
    status: int,
    said: CommandOutput = NOTHING,
    *,
    metric_regex: str | None = None,
    snapshot_glob: str | None = None,
    **fields: Any,
) -> ProbeResult:
    target = CommandTarget(command="true", repo=str(repo), metric_regex=metric_regex, snapshot_glob=snapshot_glob)
    return answer(ProbeJob(target=target, **fields), target, status, said, {})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (1, "exit"),
        (2, "exit"),
        (124, "exit"),
        (125, "untestable"),
        (126, "step"),
        (127, "step"),
        (128, "step"),
        (137, "step"),
        (255, "step"),
        (-9, "killed"),
        (-15, "killed"),
        (-11, "crash"),
    ],
)
def test_a_status_other_than_zero_is_a_failure_of_its_kind(tmp_path: Path, status: int, kind: str) -> None:
    result = answered(tmp_path, status)
    assert result.outcome == "error"
    assert result.failure is not None
    assert result.failure.kind == kind == failure_of(status)[0]
    assert result.peak is None


def test_torchs_words_count_only_where_the_command_failed(tmp_path: Path) -> None:
    result = answered(tmp_path, 1, REFUSED)
    assert (result.outcome, result.peak, result.verdict) == ("oom", None, None)
    assert result.oom is not None
    assert result.oom.requested_bytes == 5
    assert answered(tmp_path, 0, REFUSED).outcome == "fits"
    assert answered(tmp_path, 125, REFUSED).outcome == "error"


def test_a_number_is_the_live_peak_and_sums(tmp_path: Path) -> None:
    result = answered(tmp_path, 0, PRINTED, metric_regex="peak (.*)")
    peak = result.peak
    assert peak is not None
    assert peak.requested_bytes == sum(peak.categories.values()) == sum(row.bytes for row in peak.sites) == 7 * MiB
    assert result.margin_bytes is None, "nobody told the card"
    assert peak.reserved_bytes is peak.allocated_bytes is peak.active_bytes is None, "the command said nothing of them"
    assert ProbeResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    with pytest.raises(TargetError, match="printed nothing"):
        answered(tmp_path, 0, metric_regex="peak (.*)")


def snapshots(repo: Path, *names: str) -> Path:
    for name in names:
        shutil.copy(FIXTURES / name, repo / name)
    return repo


def explained(name: str, limit: int | None = None) -> DeviceExplanation:
    path = FIXTURES / name
    return max(
        explain(load_snapshot(path), file=name, limit=limit).devices, key=lambda device: device.peak.requested_bytes
    )


def test_a_snapshot_with_a_failed_allocation_is_judged_as_explain_does(tmp_path: Path) -> None:
    snapshots(tmp_path, "torch-2.13-oom.pickle.zst", "torch-2.3-spans.pickle")
    result = answered(tmp_path, 1, snapshot_glob="*.pickle*")
    same = explained("torch-2.13-oom.pickle.zst")
    assert result.outcome == "oom"
    assert result.verdict is not None
    assert (result.verdict.kind, result.verdict.headline) == (same.verdict.kind, same.verdict.headline)
    assert result.available_bytes == same.available_bytes
    assert result.oom is not None
    assert result.oom.requested_bytes == same.verdict.requested_bytes
    peak = result.peak
    assert peak is not None
    assert (peak.requested_bytes, peak.allocated_bytes) == (same.peak.requested_bytes, same.at_peak.allocated_bytes)
    assert sum(peak.categories.values()) == sum(row.bytes for row in peak.sites) == peak.requested_bytes
    assert result.notes == ("judged by the snapshot torch-2.13-oom.pickle.zst, the worst of 2 that were written",)
    assert ProbeResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_run_that_went_through_is_asked_again_on_the_card_that_is_named(tmp_path: Path) -> None:
    name = "torch-2.3-spans.pickle"
    snapshots(tmp_path, name)
    fits = answered(tmp_path, 0, snapshot_glob="*.pickle", limit_bytes=2 * GiB, non_torch_bytes=GiB)
    assert fits.outcome == "fits"
    assert fits.available_bytes == GiB
    assert fits.margin_bytes is not None
    assert fits.peak is not None
    limit = fits.peak.requested_bytes // 2
    short = answered(tmp_path, 0, snapshot_glob="*.pickle", limit_bytes=limit, non_torch_bytes=0)
    assert short.outcome == "oom"
    assert short.verdict is not None
    assert short.verdict.kind == explained(name, limit=limit).verdict.kind
    assert short.demand_bytes == fits.peak.requested_bytes
    assert "the run itself did not fail" in short.notes[0]


def test_lines_of_the_checkout_are_named_as_in_any_checkout(tmp_path: Path) -> None:
    alloc = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0}
    frames = [
        ("/usr/lib/python3.11/x.py", 1, "lib"),
        (f"{tmp_path}/pkg/model.py", 7, "forward"),
        ("/else.py", 2, "main"),
    ]
    stack = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    document = {"segments": [], "device_traces": [[{**alloc, "frames": stack}]]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    result = answered(tmp_path, 0, snapshot_glob="*.json")
    assert result.peak is not None
    assert result.peak.site is not None
    assert (result.peak.site.file, result.peak.site.line) == ("pkg/model.py", 7)


def test_only_new_or_changed_files_count(tmp_path: Path) -> None:
    old, touched = tmp_path / "old.pickle", tmp_path / "deep" / "touched.pickle"
    touched.parent.mkdir()
    old.write_bytes(b"1")
    touched.write_bytes(b"1")
    before = stamps_of(tmp_path, "**/*.pickle")
    assert set(before) == {old, touched}
    assert written_since(tmp_path, "**/*.pickle", before) == []
    os.utime(touched, ns=(0, 0))
    new = tmp_path / "new.pickle"
    new.write_bytes(b"1")
    (tmp_path / "folder.pickle").mkdir()
    assert written_since(tmp_path, "**/*.pickle", before) == [touched, new]


def test_the_command_gets_variables_of_its_job() -> None:
    target = CommandTarget(command="true", repo="/r")
    job = ProbeJob(target=target, rank=3, world_size=8, iterations=5, seed=7, limit_bytes=2 * GiB, backend="virtual")
    told = variables_of(job, {"PATH": "/bin", "OOMSCOPE_PROBE": "mark"})
    assert told == {
        "PATH": "/bin",
        "OOMSCOPE_BACKEND": "virtual",
        "OOMSCOPE_RANK": "3",
        "OOMSCOPE_WORLD_SIZE": "8",
        "OOMSCOPE_ITERATIONS": "5",
        "OOMSCOPE_SEED": "7",
        "OOMSCOPE_LIMIT_BYTES": str(2 * GiB),
    }
    assert "OOMSCOPE_LIMIT_BYTES" not in variables_of(ProbeJob(target=target), {"OOMSCOPE_LIMIT_BYTES": "1"})
