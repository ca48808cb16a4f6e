"""A night of the gate that somebody ends: what was measured is kept and shown, and is no success."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.gate.ledger.ledger import Ledger
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import ProbeResult
from oomscope.probe.tuning import variants
from oomscope.units import GiB
from tests.unit.gate.nights import measured

SUITE = "cases:\n  - {name: first, preset: gpt-tiny}\n  - {name: second, preset: gpt-tiny}\n"


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite with an accepted baseline, of which the first case is measured, and then somebody ends the night."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB))
    path = tmp_path / "memory.yaml"
    path.write_text(SUITE)
    assert run(["gate", "update", "memory.yaml", "--quiet"]) == ExitCode.OK
    return path


def end(monkeypatch: pytest.MonkeyPatch, stop: BaseException, live: int = GiB) -> None:
    """Let ``stop`` be raised in place of the second measurement."""
    answers = [measured(live)]

    def probe(_job: ProbeJob, _stop: threading.Event) -> ProbeResult:
        if not answers:
            raise stop
        return answers.pop()

    monkeypatch.setattr(variants, "launched", probe)


WORDS = ("--quiet", "--ledger", "gate.sqlite", "--result", "night.json", "--junit", "night.xml")


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)], ids=["INT", "TERM"])
def test_what_was_measured_is_printed_written_and_kept(suite: Path, capsys, monkeypatch, stop, code: int) -> None:
    with monkeypatch.context() as patch:
        end(patch, stop)
        assert run(["gate", "run", "memory.yaml", *WORDS, "--bisect"]) == code
    said = capsys.readouterr()
    assert said.out.startswith("NOT GREEN, interrupted, 2 cases: 1 nothing measured, 1 same\n")
    assert "interrupted before it was measured" in said.out
    assert "oomscope: interrupted; what was measured until then is kept" in said.err
    document = json.loads(Path("night.json").read_text())
    assert (document["interrupted"], document["exit_code"]) == (True, ExitCode.INTERRUPTED)
    assert [case["values"].get("peak_requested") for case in document["cases"]] == [GiB, None]
    assert "interrupted before it was measured" in Path("night.xml").read_text()
    with Ledger(Path("gate.sqlite")) as book:
        assert [point.case.status for point in book.points()] == ["same", "nothing measured"]
    assert run(["gate", "report", "night.json"]) == ExitCode.INTERRUPTED
