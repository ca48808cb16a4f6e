from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.probe.job import BundledTarget, HarnessTarget, ProgramTarget, Progress
from oomscope.units import GiB
from tests.unit.report import results


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch):
    """A launcher that measures nothing: answers with ``result`` and keeps the jobs it was given."""

    class Launcher:
        def __init__(self) -> None:
            self.jobs = []
            self.result = results.FITS

        def __call__(self, job, progress=None, **_):
            self.jobs.append(job)
            progress(Progress(stage="step", done=1, total=2))
            return replace(self.result, rank=job.rank, world_size=job.world_size, snapshot=job.snapshot_path)

    launcher = Launcher()
    monkeypatch.setattr("oomscope.probe.process.warm.run", launcher)
    monkeypatch.setattr("oomscope.probe.process.warm.prepare", lambda **_: None)
    return launcher


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (results.FITS, 0),
        (results.OOM, 3),
        (results.BROKEN, 6),
        (replace(results.BROKEN, failure=replace(results.BROKEN.failure, kind="unfit")), 5),
    ],
)
def test_outcomes_and_exit_codes(probed, capsys, result, code: int) -> None:
    probed.result = result
    assert run(["probe", "--preset", "gpt-tiny"]) == code
    assert "gpt-tiny · virtual" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (results.FITS, 0),
        (results.OOM, 1),
        (results.BROKEN, 125),
        (replace(results.BROKEN, failure=replace(results.BROKEN.failure, kind="unfit")), 133),
    ],
)
def test_git_bisect_codes(probed, result, code: int) -> None:
    probed.result = result
    assert run(["probe", "--preset", "gpt-tiny", "--git-bisect", "--quiet"]) == code


def test_git_bisect_leaves_no_file_and_says_the_last_line(probed, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    detail = "Traceback …\n  File x\nModuleNotFoundError: tinytrain\n"
    probed.result = replace(results.BROKEN, failure=replace(results.BROKEN.failure, detail=detail))
    assert run(["probe", "--preset", "gpt-tiny", "--git-bisect", "--quiet"]) == 125
    assert "What the target printed last: ModuleNotFoundError: tinytrain\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert run(["probe", "--preset", "gpt-tiny", "--quiet"]) == 6
    (log,) = tmp_path.iterdir()
    assert str(log) in capsys.readouterr().err


@pytest.mark.parametrize(("options", "code"), [([], 2), (["--git-bisect"], 130)])
def test_a_broken_harness_says_nothing_of_the_commit(probed, tmp_path: Path, options: list[str], code: int) -> None:
    broken = tmp_path / "harness.py"
    broken.write_text("def setup(ctx)")
    for harness, repo in ((broken, tmp_path), (tmp_path, tmp_path), (Path(__file__), broken)):
        assert run(["probe", "--harness", str(harness), "--repo", str(repo), *options]) == code
    assert probed.jobs == []
    probed.result = replace(results.BROKEN, failure=replace(results.BROKEN.failure, kind="usage"))
    assert run(["probe", "--harness", __file__, *options]) == code


def test_a_wrong_card_in_the_file_is_the_commits_and_one_in_an_option_is_not(probed, tmp_path: Path) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text("preset: gpt-tiny\ndevice: {gpu: h1000}\n")
    assert run(["probe", str(file), "--git-bisect"]) == 125
    assert run(["probe", str(file), "--git-bisect", "--gpu", "h1001"]) == 130


@pytest.mark.parametrize("text", ["model: {hiden_size: 1}", "model: ["])
def test_a_commit_whose_configuration_is_wrong_is_untestable(probed, tmp_path: Path, text: str, capsys) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(text)
    assert run(["probe", str(file), "--git-bisect"]) == 125
    assert str(file) in capsys.readouterr().err
    assert run(["probe", str(file)]) == 2


def test_json_is_one_document_and_progress_goes_to_stderr(probed, capsys) -> None:
    assert run(["probe", "--preset", "gpt-tiny", "--json", "--verbose"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema_version"] == 3
    assert document["outcome"] == "fits"
    assert document["peak"]["categories"]["activation"] == 5 * GiB
    assert document["margin_bytes"] == 2 * GiB
    assert "step" in captured.err


def test_options_and_overrides_reach_the_job(probed, tmp_path: Path) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text("preset: gpt-tiny\nprobe:\n  iterations: 3\n")
    options = ["--limit", "12GiB", "--gpu", "a100-80gb", "--backend", "virtual", "--timeout", "9"]
    assert run(["probe", str(file), "data.seq_length=64", *options]) == 0
    (job,) = probed.jobs
    assert isinstance(job.target, BundledTarget)
    assert job.target.config["data"]["seq_length"] == 64
    assert (job.limit_bytes, job.gpu, job.backend, job.timeout_s) == (12 * GiB, "a100-80gb", "virtual", 9.0)
    assert job.iterations == 3


@pytest.mark.parametrize(
    ("options", "confirm"), [([], None), (["--no-confirm"], False), (["--confirm"], True), (["--git-bisect"], False)]
)
def test_whether_cures_are_run_is_up_to_the_user(probed, options: list[str], confirm: bool | None) -> None:
    run(["probe", "--preset", "gpt-tiny", *options])
    (job,) = probed.jobs
    assert job.confirm is confirm


def test_worst_probes_one_rank_a_stage(probed, capsys) -> None:
    overrides = ["parallel.pipeline_model_parallel_size=2", "data.num_microbatches=2"]
    assert run(["probe", "--preset", "gpt-tiny", *overrides, "--rank", "worst", "--json"]) == 0
    assert [job.rank for job in probed.jobs] == [0, 1]
    assert len(json.loads(capsys.readouterr().out)["ranks"]) == 2


def test_harness(probed, tmp_path: Path, capsys) -> None:
    harness = tmp_path / "harness.py"
    harness.touch()
    checkout = tmp_path / "project"
    checkout.mkdir()
    settings = ["allocator.conf=max_split_size_mb:128", "--limit", "4GiB"]
    assert run(["probe", "--harness", str(harness), "--repo", str(checkout), *settings]) == 0
    (job,) = probed.jobs
    assert job.target == HarnessTarget(harness=str(harness), repo=str(checkout))
    assert (job.allocator_conf, job.limit_bytes, job.world_size) == ("max_split_size_mb:128", 4 * GiB, 1)
    assert "harness.py in project" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no configuration given; name a YAML file, a preset with --preset, or a program after --"),
        (["--preset", "gpt-tinny"], "gpt-tiny"),
        (["a.yaml", "b.yaml"], "two configuration files"),
        (["a.yaml", "--preset", "gpt-tiny"], "both a.yaml and --preset"),
        (["--preset", "gpt-tiny", "model.hiden_size=4"], "hidden_size"),
        (["--preset", "gpt-tiny", "--limit", "many"], "is not a size"),
        (["--preset", "gpt-tiny", "--rank", "7"], "no rank 7"),
        (["--preset", "gpt-tiny", "--repo", "."], "--repo without --harness"),
        (["--harness", "nothing.py"], "no such harness file"),
        (["--harness", __file__, "--preset", "gpt-tiny"], "both --harness"),
        (["--harness", __file__, "data.seq_length=1"], "does not apply to a harness"),
        (["--harness", __file__, "--repo", "/nowhere"], "no such checkout"),
        (["--harness", __file__, "--repo", __file__], "is no directory"),
        (["--harness", "/"], "is a directory"),
        (["--harness", __file__, "--rank", "8", "--world-size", "8"], "--rank 8: a world of 8 ranks has no rank 8"),
        (["--harness", __file__, "--rank", "worst", "--world-size", "8"], "--rank worst: it is unknown which ranks"),
        (["--preset", "gpt-tiny", "--world-size", "8"], "--world-size 8: the parallel sizes make a world of 1 rank"),
        (["--preset", "gpt-tiny", "--world-size", "0"], "'--world-size': 0 is not in the range"),
        (["--preset", "gpt-tiny", "--timeout", "0"], "--timeout 0.0: "),
        (["--preset", "gpt-tiny", "--timeout", "nan"], "--timeout nan: "),
        (["--preset", "gpt-tiny", "--iterations", "0"], "'--iterations': 0 is not in the range 1<=x<=2147483647"),
        (["--preset", "gpt-tiny", "--gpu", "h1000"], "--gpu h1000: device.gpu: no card is called 'h1000'"),
        (["--preset", "gpt-tiny", "--html", "/nowhere/a.html"], "folder does not exist"),
        (["--preset", "gpt-tiny", "--html", "/"], "is a directory"),
    ],
)
def test_what_cannot_be_understood_is_one_line(probed, capsys, arguments: list[str], words: str) -> None:
    assert run(["probe", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert probed.jobs == []


def test_html_is_written_whole_and_never_over_a_file(probed, tmp_path: Path, capsys) -> None:
    file = tmp_path / "report.html"
    arguments = ["probe", "--preset", "gpt-tiny", "--html", str(file)]
    assert run(arguments) == 0
    assert file.read_text().startswith("<!doctype html>")
    assert capsys.readouterr().err.splitlines()[-1] == f"Wrote {file}"
    assert run(arguments) == 2
    assert len(probed.jobs) == 1
    assert run([*arguments, "--force"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--html", "x", "--snapshot", "x"], "--snapshot and --html name one file"),
        (["--html", "./sub/../x", "--snapshot", "x"], "--snapshot and --html"),
        (["--html", "link", "--snapshot", "x"], "--snapshot and --html"),
        (["--html", "folder/x", "--snapshot", "x"], "--snapshot and --html"),
        (["--html", "tables/sites.csv", "--csv", "tables"], "--html and --csv"),
        (["--snapshot", "new", "--csv", "new"], "--snapshot and --csv"),
        (["--html", "cfg.yaml"], "the configuration and --html"),
    ],
)
def test_two_files_are_never_written_to_one_place(probed, capsys, tmp_path, monkeypatch, options, words) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cfg.yaml").write_text("preset: gpt-tiny")
    for name in ("sub", "tables"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "folder").symlink_to(tmp_path)
    assert run(["probe", "cfg.yaml", *options, "--force"]) == 2
    assert words in capsys.readouterr().err
    assert probed.jobs == []


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(probed, tmp_path: Path, capsys) -> None:
    for place in ("/dev/full", "/proc/trace.pickle"):
        assert run(["probe", "--preset", "gpt-tiny", "--snapshot", place, "--force"]) == 2
        assert f"{place}: cannot write" in capsys.readouterr().err
    assert run(["probe", "--preset", "gpt-tiny", "--snapshot", str(tmp_path / "a")]) == 0
    assert len(probed.jobs) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("result", "code"), [(results.FITS, 74), (results.OOM, 74), (results.BROKEN, 6)])
def test_a_snapshot_that_was_lost_is_no_success(probed, tmp_path: Path, monkeypatch, result, code: int) -> None:
    monkeypatch.setattr("oomscope.probe.process.warm.run", lambda *_: result)
    assert run(["probe", "--preset", "gpt-tiny", "--snapshot", str(tmp_path / "a")]) == code


def test_a_defect_of_the_page_takes_no_report_with_it(probed, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("oomscope.report.html.pages.probe_page", lambda *_, **__: 1 / 0)
    assert run(["probe", "--preset", "gpt-tiny", "--html", str(tmp_path / "a.html"), "--json"]) == 70
    said = capsys.readouterr()
    assert json.loads(said.out)["outcome"] == "fits"
    assert "oomscope: internal error: ZeroDivisionError" in said.err


@pytest.fixture
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomscope.cli.probe.new_log", lambda: None)


@pytest.mark.usefixtures("no_logs")
def test_words_after_two_dashes_are_a_program(probed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    program = ["env", "train.py", "--lr=1", "a b", "--", "-x"]
    assert run(["probe", "--gpu", "l4", "--quiet", "--", *program]) == 0
    (job,) = probed.jobs
    assert job.target == ProgramTarget(repo=str(tmp_path), command="env train.py --lr=1 'a b' -- -x")
    assert (job.gpu, job.iterations) == ("l4", 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "no program after '--'"),
        (["--harness", "h.py", "--", "python"], "both --harness and -- PROGRAM"),
        (["--command", "true", "--", "python"], "both --command and -- PROGRAM"),
        (["--exit-status", "--", "python"], "--exit-status without --command"),
        (["--world-size", "2", "--backend", "cuda", "--", "env"], "--world-size with a program on a real card"),
        (["--world-size", "2", "--rank", "2", "--", "env"], "a world of 2 ranks has no rank 2"),
        (["--preset", "gpt-tiny", "--", "env"], "both --command and"),
        (["--", "no-such-program-anywhere"], "no program no-such-program-anywhere on your PATH"),
    ],
)
def test_a_program_that_makes_no_sense(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run(["probe", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
