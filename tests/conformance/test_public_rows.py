"""The rules by which published rows are read, compared and counted."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.units import MiB
from tests.conformance.published import comparing, exclusions, liger_rows, mechanisms, peft_rows, printing
from tests.conformance.published.comparing import Verdict
from tests.conformance.published.rows import Row, read_rows

ROWS = """grade,source_repo,source_commit,source_path,model_or_op,config,gpu,torch,other_versions,metric,bytes,\
value_as_printed,eager,notes
A,linkedin/Liger-Kernel,HEAD,data.csv,softmax / torch,"full; N=2048; {""M"": 8}",NVIDIA H100 80GB HBM3,not recorded,\
liger 0.5; 2025-04-30 16:11:25,max,1048576,,yes,through float32: exact to 512 B
B,a/b,c,d,e,f,g,h,i,j,1,,yes,
A-,huggingface/peft,51c,r/lora--x.json,meta-llama/Llama-3.2-3B :: lora--x,c,NVIDIA L40S,2.13,\
transformers 5.13.1; peft 0.19 @d78,memory_allocated after step,7,,yes,
"""
LIGER_FILE = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,x_value,extra_benchmark_config_str,timestamp\n"
    'softmax,torch,full,speed,2048,"{""M"": 8}",2025-04-30 16:11:24\n'
    'softmax,torch,full,memory,2048,"{""M"": 8}",2025-04-30 16:11:25\n'
)


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """One of Liger's and one of PEFT's."""
    file = tmp_path / "rows.csv"
    file.write_text(ROWS)
    return list(read_rows(file))


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_rows_of_lower_grades_are_left_out(rows):
    assert [(row.line, row.grade, row.resolution) for row in rows] == [(2, "A", 512), (4, "A-", 1)]


def test_a_script_is_of_the_commit_that_brought_the_row(tmp_path, rows):
    git(tmp_path, "init", "-q")
    lines = LIGER_FILE.splitlines(keepends=True)
    (tmp_path / "data.csv").write_text("".join(lines[:2]))
    git(tmp_path, "add", "data.csv")
    git(tmp_path, "commit", "-qm", "speed")
    (tmp_path / "data.csv").write_text(LIGER_FILE)
    git(tmp_path, "commit", "-qam", "memory")
    brought = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "later")
    ((script, cases),) = liger_rows.scripts_of(tmp_path, rows[:1]).items()
    assert script == liger_rows.LigerScript(brought, "softmax", "NVIDIA H100 80GB HBM3")
    assert [case.key for case in cases] == [("softmax", "torch", "full", "2048", '{"M": 8}')]


def test_a_row_that_no_commit_brought_is_named(tmp_path, rows):
    git(tmp_path, "init", "-q")
    (tmp_path / "data.csv").write_text(LIGER_FILE)
    git(tmp_path, "add", "data.csv")
    git(tmp_path, "commit", "-qm", "all")
    with pytest.raises(LookupError, match="line 2"):
        liger_rows.scripts_of(tmp_path, [replace(rows[0], subject="softmax / liger")])


def test_experiments_of_one_commit_run_in_one_process(rows):
    ((runs, its_rows),) = peft_rows.runs_of(rows[1:]).items()
    assert runs == peft_rows.PeftRuns("51c", "d78", "5.13.1", "2.13")
    assert [peft_rows.experiment_of(row) for row in its_rows] == ["lora/x"]


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [
        (0, Verdict.EXACT),
        (511, Verdict.EXACT),
        (512, Verdict.NEAR),
        (20 * 1024, Verdict.OFF),
        (-MiB, Verdict.WORKSPACE),
        (8_519_680, Verdict.WORKSPACE),
        (-33_554_432, Verdict.WORKSPACE),
        (33_554_432 + 512, Verdict.OFF),
    ],
)
def test_a_peak_is_exact_by_a_workspace_near_or_off(rows, apart, verdict):
    assert comparing.peak(rows[0], rows[0].recorded + apart).verdict is verdict


@pytest.mark.parametrize(
    ("recorded", "apart", "verdict"),
    [
        (0, 0, Verdict.EXACT),
        (-1, 2 * MiB, Verdict.NEAR),
        (-1, 2 * MiB + 1, Verdict.OFF),
        (1000 * MiB, -10 * MiB, Verdict.NEAR),
        (1000 * MiB, 11 * MiB, Verdict.OFF),
    ],
)
def test_a_difference_to_the_reference_is_near_within_a_hundredth_or_two_mebibytes(rows, recorded, apart, verdict):
    assert comparing.state(rows[1], recorded, recorded + apart).verdict is verdict


def test_excluded_rows_have_a_reason_and_are_not_counted(rows):
    reserved = replace(rows[1], metric="memory_reserved after step")
    assert exclusions.reason_to_exclude(rows[0]) is None
    assert exclusions.reason_to_exclude(rows[1]) is None
    reason = exclusions.reason_to_exclude(reserved)
    assert reason is not None
    outcomes = [comparing.excluded(reserved, reason), comparing.peak(rows[0], rows[0].recorded)]
    lines = list(printing.closing(outcomes))
    assert lines[0] == f"excluded: 1 rows: {reason}"
    assert lines[-1] == "1 of 1 rows exact, 0 by a workspace constant, 0 within 1 %, 1 excluded"


def test_a_mechanism_explains_only_whole_rows_of_weights(rows):
    row = replace(rows[0], subject="embedding / huggingface", config='full; V=1024; {"D": 768}', recorded=10**11)
    kept = 768 * 4 * 1024
    assert mechanisms.explained(comparing.peak(row, 10**11 - kept)).reason
    assert not mechanisms.explained(comparing.peak(row, 10**11 - kept + 1024)).reason
    assert not mechanisms.explained(comparing.peak(replace(row, subject="softmax / torch"), 10**11 - kept)).reason


def test_a_miss_of_a_configuration_that_the_script_lacks_is_explained(rows):
    missed = comparing.peak(rows[0], 3 * rows[0].recorded)
    assert mechanisms.explained(missed, listed=False).reason == mechanisms.NOT_LISTED
