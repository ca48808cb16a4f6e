"""The commands of the gate over a played probe: exit codes, files, and what is printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.gate.ledger.ledger import Ledger
from oomscope.probe.tuning import variants
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import failed, measured, out_of_memory

SUITE = """\
cases:
  - name: tiny
    preset: gpt-tiny
  - name: other
    preset: gpt-tiny
    overrides: [data.micro_batch_size=2]
"""


class Device:
    """What the next probes say: the same for all, unless a rank or batch is named."""

    def __init__(self) -> None:
        self.result = measured(GiB)
        self.probes = 0

    def __call__(self, _job, _stop):
        self.probes += 1
        return self.result


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(variants, "launched", device)
    return device


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device) -> Path:
    """A suite with an accepted baseline, in a folder of its own with a ledger of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "memory.yaml"
    path.write_text(SUITE)
    assert run(["gate", "update", "memory.yaml", "--quiet"]) == ExitCode.OK
    return path


def gate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["gate", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_green_is_a_line_a_case(suite: Path, capsys) -> None:
    code, out, err = gate(capsys, "run", "memory.yaml", "--quiet")
    assert (code, err) == (ExitCode.OK, "")
    assert out.splitlines()[0] == "GREEN, 2 cases: 2 same"
    assert [line.split()[:3] for line in out.splitlines()[3:5]] == [
        ["tiny", "same", "peak_requested"],
        ["other", "same", "peak_requested"],
    ]


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (measured(GiB + MiB), ExitCode.REGRESSION, "+1.00 MiB"),
        (measured(GiB - MiB), ExitCode.OK, "propose a new one: oomscope gate update memory.yaml --case tiny"),
        (measured(GiB, reserved=GiB + MiB), ExitCode.OK, "warn"),
        (out_of_memory(GiB), ExitCode.REGRESSION, "out of memory (capacity), where it fitted"),
        (failed("import", "no module"), ExitCode.TARGET_FAILED, "import: no module"),
        (failed("unfit", "no such GPU"), ExitCode.MACHINE_UNFIT, "no such GPU"),
        (measured(0), ExitCode.NOTHING_MEASURED, "allocated nothing"),
        (failed("nothing", "put nothing on the device"), ExitCode.NOTHING_MEASURED, "put nothing on the device"),
        (measured(GiB, versions={"torch": "9"}), ExitCode.NO_BASELINE, "torch 2.13.0, now 9"),
        (
            measured(GiB, variables={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}),
            ExitCode.NO_BASELINE,
            "variables none, now CUBLAS_WORKSPACE_CONFIG=:16:8",
        ),
    ],
)
def test_each_outcome_has_its_code_and_its_words(suite: Path, device: Device, capsys, result, code, said) -> None:
    device.result = result
    found, out, _ = gate(capsys, "run", "memory.yaml", "--quiet")
    assert found == code
    assert said in " ".join(out.split())


def test_one_case_alone(suite: Path, device: Device, capsys) -> None:
    code, out, err = gate(capsys, "run", "memory.yaml", "--case", "other", "--verbose")
    assert (code, out.splitlines()[0]) == (ExitCode.OK, "GREEN, 1 case: 1 same")
    assert err == "memory.yaml: case\n1 of 1: other: same\n"


def test_an_empty_suite_is_not_green(suite: Path, capsys) -> None:
    suite.write_text("cases: []")
    code, out, err = gate(capsys, "run", "memory.yaml")
    assert (code, out) == (ExitCode.NOTHING_MEASURED, "")
    assert err == "oomscope: memory.yaml:1: the suite has no cases; give at least one, with a name\n"


@pytest.mark.parametrize("name", ["memory.yaml", "memory.baseline.yaml"])
def test_a_wrong_file_is_one_line(suite: Path, device: Device, capsys, name: str) -> None:
    device.probes = 0
    Path(name).write_text("cases: [\n")
    code, out, err = gate(capsys, "run", "memory.yaml")
    assert (code, out, err.count("\n"), device.probes) == (ExitCode.USAGE, "", 1, 0)
    assert err.startswith(f"oomscope: {name}:2: not YAML")


def test_the_document_can_be_accepted_later_and_put_into_a_ledger(suite: Path, device: Device, capsys) -> None:
    device.result = measured(GiB + MiB)
    code, out, _ = gate(capsys, "run", "memory.yaml", "--quiet", "--json", "--result", "night.json")
    assert code == ExitCode.REGRESSION
    document = json.loads(out)
    assert document == json.loads(Path("night.json").read_text())
    assert (document["exit_code"], document["cases"][0]["metrics"][0]["difference"]) == (1, MiB)

    device.probes = 0
    code, out, _ = gate(capsys, "update", "memory.yaml", "--from", "night.json", "--accept", "tiny")
    assert (code, device.probes) == (ExitCode.REGRESSION, 0)
    assert out == "accepted: tiny\nnot accepted: other (worse: accept it with --accept other)\n"
    code, _, _ = gate(capsys, "run", "memory.yaml", "--quiet", "--case", "tiny")
    assert code == ExitCode.OK

    code, out, _ = gate(capsys, "import", "night.json", "night.json", "--ledger", "new.sqlite")
    assert (code, out) == (ExitCode.OK, "1 added, 1 known before: new.sqlite\n")
    code, out, _ = gate(capsys, "history", "tiny", "--ledger", "new.sqlite", "--json")
    (trend,) = json.loads(out)["trends"]
    assert [entry["value"] for entry in trend["nights"]] == [GiB + MiB]


def test_history_shows_the_trend(suite: Path, device: Device, capsys) -> None:
    for live in (GiB, GiB + MiB):
        device.result = measured(live)
        gate(capsys, "run", "memory.yaml", "--quiet")
    code, out, err = gate(capsys, "history", "tiny", "--html", "trend.html", "--png", "trend.png")
    assert code == ExitCode.OK
    assert re.search(r"tiny \(.*memory.yaml\): peak_requested over 2 nights", out)
    assert "+1.00 MiB" in out
    assert "other" not in out
    assert err == "Wrote trend.html\nWrote trend.png\n"
    page = Path("trend.html").read_text()
    assert "+1.00 MiB" in page
    assert "http" not in page.replace("http-equiv", "")
    assert Path("trend.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("history", "tiny", "--metric", "speed"), "metrics are peak_requested"),
        (("history", "nobody"), "no night of a case 'nobody'"),
        (("history", "--suite", "nosuch.yaml"), "no night of nosuch.yaml"),
        (("history", "--ledger", "none.sqlite"), "no ledger"),
        (("history", "--ledger", "memory.yaml"), "is damaged, or no ledger"),
        (("run", "memory.yaml", "--ledger", "memory.yaml"), "name one file"),
        (("run", "memory.yaml", "--case", "nobody"), "no case is called 'nobody'"),
        (("run", "memory.yaml", "--result", "memory.yaml"), "name one file"),
        (("update", "memory.yaml", "--from", "memory.yaml"), "name one file"),
        (("update", "memory.yaml", "--from", "memory.baseline.yaml"), "name one file"),
        (("update", "memory.yaml", "--from", "none.json"), "cannot be read"),
        (("import",), "Missing argument"),
        (("import", "memory.yaml"), "is not JSON"),
    ],
)
def test_a_mistake_is_one_line(suite: Path, capsys, words, said) -> None:
    gate(capsys, "run", "memory.yaml", "--quiet")
    code, out, err = gate(capsys, *words)
    assert (code, out, err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert said in err


def test_without_a_home_a_ledger_has_to_be_named(suite: Path, capsys, monkeypatch) -> None:
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    code, _, err = gate(capsys, "run", "memory.yaml", "--quiet")
    assert (code, err) == (ExitCode.USAGE, "oomscope: no home directory to keep a ledger in; give --ledger FILE\n")
    assert gate(capsys, "run", "memory.yaml", "--quiet", "--no-ledger")[0] == ExitCode.OK


def test_calibration_on_a_device_without_noise_keeps_the_default_bands(suite: Path, device: Device, capsys) -> None:
    code, out, _ = gate(capsys, "calibrate", "memory.yaml", "--repeats", "5", "--quiet", "--write", "--case", "tiny")
    assert code == ExitCode.OK
    assert "peak_reserved" in out
    for result, status, ends in (
        (measured(GiB, reserved=GiB + 1), "warn", ExitCode.OK),
        (measured(GiB + 1, reserved=GiB), "worse", ExitCode.REGRESSION),
    ):
        device.result = result
        code, out, _ = gate(capsys, "run", "memory.yaml", "--quiet", "--json")
        assert code == ends
        assert {case["status"] for case in json.loads(out)["cases"]} == {status}


def test_calibration_needs_a_baseline_to_write_to(suite: Path, capsys) -> None:
    words = ("calibrate", "memory.yaml", "--repeats", "5", "--quiet", "--baseline", "none.yaml")
    assert gate(capsys, *words)[0] == ExitCode.OK
    code, _, err = gate(capsys, *words, "--write")
    assert code == ExitCode.NO_BASELINE
    assert "oomscope gate update first" in err
    assert not Path("none.yaml").exists()


@pytest.mark.parametrize("words", [("update",), ("calibrate", "--repeats", "5", "--write")])
def test_what_others_wrote_meanwhile_is_kept(suite: Path, device: Device, capsys, monkeypatch, words) -> None:
    kept = suite.with_name("memory.baseline.yaml")
    elsewhere = kept.read_text().replace("backend: virtual", "backend: cuda")

    def measure(_job, _stop):
        kept.write_text(elsewhere)
        return measured(GiB - MiB)

    monkeypatch.setattr(variants, "launched", measure)
    gate(capsys, words[0], "memory.yaml", *words[1:], "--quiet")
    assert "backend: cuda" in kept.read_text()


def test_cases_that_only_the_baseline_has_are_reported_and_removed(suite: Path, device: Device, capsys) -> None:
    suite.write_text("cases: [{name: tiny, preset: gpt-tiny}]")
    kept = suite.with_name("memory.baseline.yaml")
    code, out, _ = gate(capsys, "run", "memory.yaml", "--quiet", "--result", "night.json")
    assert code == ExitCode.OK
    assert "only the baseline has them: other; oomscope gate update removes them" in " ".join(out.split())
    assert json.loads(Path("night.json").read_text())["unwatched"] == ["other"]
    assert "removes" not in gate(capsys, "run", "memory.yaml", "--quiet", "--case", "tiny")[1]
    assert "other" in kept.read_text()
    gate(capsys, "update", "memory.yaml", "--quiet", "--case", "tiny")
    assert "other" in kept.read_text()
    code, out, _ = gate(capsys, "update", "memory.yaml", "--quiet")
    assert (code, out) == (ExitCode.OK, "removed: other (the suite has no such case)\n")
    assert "other" not in kept.read_text()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)], ids=["INT", "TERM"])
def test_an_interrupted_night_keeps_what_was_measured(suite: Path, capsys, monkeypatch, stop, code: int) -> None:
    answers = [measured(GiB)]

    def probe(_job, _stop):
        if not answers:
            raise stop
        return answers.pop()

    monkeypatch.setattr(variants, "launched", probe)
    words = ("--quiet", "--ledger", "gate.sqlite", "--result", "night.json", "--junit", "night.xml", "--bisect")
    found, out, err = gate(capsys, "run", "memory.yaml", *words)
    assert found == code
    assert out.startswith("NOT GREEN, interrupted, 2 cases: 1 nothing measured, 1 same\n")
    assert "interrupted before it was measured" in out
    assert "oomscope: interrupted; what was measured until then is kept" in err
    document = json.loads(Path("night.json").read_text())
    assert (document["interrupted"], document["exit_code"]) == (True, ExitCode.INTERRUPTED)
    assert [case["values"].get("peak_requested") for case in document["cases"]] == [GiB, None]
    assert "interrupted before it was measured" in Path("night.xml").read_text()
    with Ledger(Path("gate.sqlite")) as book:
        assert {point.case.name: point.case.status for point in book.points()} == {
            "tiny": "same",
            "other": "nothing measured",
        }
    assert gate(capsys, "report", "night.json")[0] == ExitCode.INTERRUPTED
