"""What is made of a night: every file, and a status that no failing renderer, full disk or gone reader can change."""

from __future__ import annotations

import errno
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.cli.gate.outputs import RENDERERS
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.gate.night.compare import compare_metric
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import EXACT
from oomscope.units import GiB, MiB
from tests.integration.program import OOMSCOPE
from tests.unit.gate.nights import case_result, night

SUITE = "cases: [{name: tiny, preset: gpt-tiny}]\n"
GREEN = night(1)
RED = night(1, replace(case_result(1, Status.WORSE), rows=(compare_metric("peak_requested", GiB, GiB + MiB, EXACT),)))
OUTPUTS = {
    "--result": ("night.json", '"kind": "gate"'),
    "--junit": ("night.xml", "<failure"),
    "--html": ("night.html", "<!doctype html>"),
    "--step-summary": ("summary.md", "RED"),
    "--comment": ("comment.md", "<!-- oomscope gate: "),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a green and a red night in it."""
    monkeypatch.chdir(tmp_path)
    for name, found in (("green", GREEN), ("red", RED)):
        Path(f"{name}.json").write_text(json.dumps(replace(found, suite=str(tmp_path / "memory.yaml")).to_json()))
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["gate", "report", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def options(*but: str) -> list[str]:
    return [word for option, (name, _) in OUTPUTS.items() if option not in but for word in (option, name)]


def test_every_file_is_written_and_named(capsys) -> None:
    code, out, err = report(capsys, "red.json", *options(), "--annotations")
    assert code == ExitCode.REGRESSION
    assert out.startswith("RED, 1 case: 1 worse\n")
    for name, piece in OUTPUTS.values():
        assert piece in Path(name).read_text()
        assert f"Wrote {name}\n" in err
    assert "::error file=memory.yaml,line=1,title=oomscope gate%3A tiny::worse: peak_requested" in err
    assert json.loads(Path("night.json").read_text()) == json.loads(Path("red.json").read_text())


@pytest.mark.parametrize(
    ("option", "defect", "lost"),
    [
        ("--html", ZeroDivisionError("boom"), ExitCode.INTERNAL),
        ("--junit", RecursionError(), ExitCode.INTERNAL),
        ("--comment", OSError(errno.ENOSPC, "No space left on device"), ExitCode.OUTPUT_LOST),
    ],
)
def test_a_renderer_that_fails_changes_no_red_and_loses_nothing_else(
    capsys, monkeypatch, option: str, defect: Exception, lost: ExitCode
) -> None:
    def failing(*_given: object) -> str:
        raise defect

    monkeypatch.setattr(RENDERERS[option].replace(":", "."), failing)
    for name, code in (("red.json", ExitCode.REGRESSION), ("green.json", lost)):
        found, out, err = report(capsys, name, *options(), "--force")
        assert found == code
        assert out.startswith(("RED", "GREEN"))
        assert err.count("Wrote") == len(OUTPUTS) - 1
        assert "Traceback" not in err
        assert sum(line.startswith("oomscope: ") for line in err.splitlines()) == 1


def test_a_full_disk_under_standard_output_hides_no_red() -> None:
    with Path("/dev/full").open("w") as full:
        command = [str(OOMSCOPE), "gate", "report", "red.json", "--junit", "red.xml"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == ExitCode.REGRESSION
    assert "oomscope: standard output: cannot write: No space left on device" in done.stderr
    assert Path("red.xml").exists()


def test_the_document_and_its_summary_replace_the_report(capsys) -> None:
    code, out, _ = report(capsys, "red.json", "--json")
    assert (code, json.loads(out)["kind"]) == (ExitCode.REGRESSION, "gate")
    code, out, _ = report(capsys, "red.json", "--json", "--summary")
    assert (code, json.loads(out)["outcome"]) == (ExitCode.REGRESSION, "red")


def test_the_summary_goes_to_the_step_by_itself(capsys, monkeypatch) -> None:
    step = Path("step.md")
    step.write_text("Another command was here.\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    report(capsys, "red.json")
    assert step.read_text().startswith("Another command was here.\n\n### ❌ oomscope gate: RED")
    before = step.read_text()
    report(capsys, "red.json", "--step-summary", "mine.md")
    assert step.read_text() == before
    assert Path("mine.md").read_text() in before


def test_an_automatic_summary_that_cannot_be_written_is_reported_and_changes_nothing(capsys, monkeypatch) -> None:
    step = Path("step.md")
    step.write_text("x" * MiB)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    code, _, err = report(capsys, "red.json")
    assert (code, err) == (
        ExitCode.REGRESSION,
        "oomscope: step.md: the summary of this step is full; give the gate a step of its own\n",
    )
    assert step.stat().st_size == MiB
    assert report(capsys, "green.json")[0] == ExitCode.OK
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "not/mounted/step.md")
    code, _, err = report(capsys, "green.json")
    assert (code, err) == (
        ExitCode.OK,
        "oomscope: not/mounted/step.md: cannot write: No such file or directory; choose another place\n",
    )
