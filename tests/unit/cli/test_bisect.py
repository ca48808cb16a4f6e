from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode
from oomscope.bisect.vcs.ranges import FileRange, RevisionRange
from oomscope.cli.main import run
from oomscope.errors import ExitCode, gravest
from oomscope.probe.job import Progress
from oomscope.units import GiB
from tests.unit.bisect.repos import Repo
from tests.unit.report import searches


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch):
    """A search that probes nothing: answers with ``result`` and keeps the requests it was given."""

    class Search:
        def __init__(self) -> None:
            self.requests = []
            self.result = searches.COMMITS

        def __call__(self, request, *, reporter):
            self.requests.append(request)
            reporter.planned(SearchPlan(title="t", good="a", bad="b", candidates=1, considered=1, probes_at_most=3))
            for record in self.result.probes:
                reporter.probing("name", record.number)
                reporter.progressed(Progress(stage="step"))
                reporter.probed(record)
            return self.result

    search = Search()
    monkeypatch.setattr("oomscope.bisect.commit_bisect.bisect_commits", search)
    monkeypatch.setattr("oomscope.bisect.change_bisect.bisect_configs", search)
    monkeypatch.setattr("oomscope.bisect.change_bisect.bisect_environment", search)
    return search


@pytest.fixture
def harness(tmp_path: Path) -> str:
    file = tmp_path / "harness.py"
    file.touch()
    return str(file)


@pytest.mark.parametrize(("result", "code"), [(searches.COMMITS, 0), (searches.NO_CULPRIT, 0), (searches.SUSPECTS, 7)])
def test_outcomes_and_exit_codes(searched, harness, capsys, result, code: int) -> None:
    searched.result = result
    assert run(["bisect", "v1..v2", "--harness", harness]) == code
    out = capsys.readouterr().out
    assert "  1  good        aaaaaaaaaa start" in out
    assert result.message in out


def test_json_is_one_document_and_the_answers_go_to_stderr(searched, harness, capsys) -> None:
    assert run(["bisect", "v1..v2", "--harness", harness, "--json", "--verbose"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["schema_version"], document["outcome"]) == (2, "culprit")
    assert document["culprit"]["delta"] == {"requested_bytes": 2 * GiB, "reserved_bytes": GiB}
    assert "  1  good" in captured.err


def test_quiet_says_nothing_on_stderr(searched, harness, capsys) -> None:
    assert run(["bisect", "v1..v2", "--harness", harness, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["outcome"] == "culprit"


def test_the_class_is_echoed_as_it_was_written(searched, harness, capsys) -> None:
    assert run(["bisect", "v1..v2", "--harness", harness, "--bad", "requested>2GiB"]) == 0
    (request,) = searched.requests
    assert str(request.bad) == "requested>2GiB"


def test_a_file_in_place_of_a_directory_is_one_line(harness, tmp_path: Path, capsys) -> None:
    file = tmp_path / "file"
    file.touch()
    repo = str(Repo(tmp_path / "repo").path)
    for options in (["--state", str(file), "--repo", repo], ["--repo", str(file)]):
        assert run(["bisect", "v1..v2", "--harness", harness, *options]) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert options[0] in said
        assert said.count("\n") == 1


def test_a_harness_over_commits(searched, harness, tmp_path: Path) -> None:
    options = [
        "--repo",
        str(tmp_path),
        "--limit",
        "7GiB",
        "--iterations",
        "4",
        "--bad",
        "requested>1GiB",
        "--first-parent",
    ]
    state = ["--deadline", "60", "--fresh", "--state", str(tmp_path / "state")]
    assert (
        run(["bisect", "v1..v2", "device.stream_lag=2", *options, *state, "--harness", harness, "--", "src", "-x"]) == 0
    )
    (request,) = searched.requests
    assert request.range == RevisionRange(good="v1", bad="v2")
    assert (request.repo, request.paths, request.first_parent) == (tmp_path, ("src", "-x"), True)
    assert (request.bad, request.deadline_s, request.use_cache) == (Bad(name="requested", threshold=GiB), 60.0, False)
    assert request.places.root == tmp_path / "state"
    assert isinstance(request.subject, OwnCode)
    assert request.subject.settings.device.limit == 7 * GiB
    assert request.subject.settings.device.stream_lag == 2
    assert set(request.subject.overrides) == {"device.stream_lag=2", "device.limit=7GiB", "probe.iterations=4"}


def test_a_configuration_over_commits(searched) -> None:
    assert run(["bisect", "v1..v2", "--config", "conf/a.yaml", "data.seq_length=8", "--rank", "last"]) == 0
    (request,) = searched.requests
    assert request.subject == ConfigInRepo(path="conf/a.yaml", overrides=("data.seq_length=8", "probe.rank=last"))
    assert request.repo == Path()
    assert request.use_cache


def test_two_files(searched, tmp_path: Path) -> None:
    searched.result = searches.KEYS
    files = [tmp_path / "good.yaml", tmp_path / "bad.yaml"]
    for file in files:
        file.write_text("preset: gpt-tiny")
    assert run(["bisect", f"{files[0]}..{files[1]}", "--gpu", "h200"]) == 0
    (request,) = searched.requests
    assert request.range == FileRange(good=files[0], bad=files[1])
    assert request.overrides == ("device.gpu=h200",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["v1"], "is not a range; write GOOD..BAD"),
        (["resum"], "is not a range; did you mean oomscope bisect resume?"),
        (["a.pickle.gz"], "oomscope explain a.pickle.gz reads a memory snapshot"),
        (["v1..v2"], "nothing says what to measure"),
        (["v1..v2", "--config", "a.yaml", "--harness", "h.py"], "both --config and --harness"),
        (["v1..v2", "--config", "a.yaml", "src"], "write paths after --"),
        (["v1..v2", "--config", "a.yaml", "--bad", "slow"], "is not a class of results"),
        (["v1..v2", "--config", "a.yaml", "--limit", "x"], "is not a size"),
        (["v1..v2", "--harness", "h.py", "data.seq_length=1"], "says nothing to a harness"),
        (["good.yaml..bad.yaml"], "no such configuration file"),
        (["-x..v2", "--config", "a.yaml"], "No such option"),
        (["v1..v2", "--html", "/"], "is a directory"),
        (["v1..v2", "--config", "a.yaml", "--deadline", "-1"], "'--deadline': -1.0 is not in the range x>=0"),
        (["v1..v2", "--config", "a.yaml", "--deadline", "nan"], "'--deadline': nan is not a number of seconds"),
        (["v1..v2", "--config", "a.yaml", "--deadline", "inf"], "'--deadline': inf is not a number of seconds"),
    ],
)
def test_what_cannot_be_understood_is_one_line(searched, capsys, arguments: list[str], words: str) -> None:
    assert run(["bisect", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert searched.requests == []


def test_options_about_commits_mean_nothing_to_files(searched, tmp_path: Path, capsys) -> None:
    file = tmp_path / "a.yaml"
    file.touch()
    assert run(["bisect", f"{file}..{file}", "--first-parent"]) == 2
    assert "--first-parent with two configuration files" in capsys.readouterr().err


def test_what_is_read_is_not_written_over(searched, harness, tmp_path: Path, capsys) -> None:
    files = [tmp_path / "good.yaml", tmp_path / "bad.yaml"]
    for file in files:
        file.write_text("preset: gpt-tiny")
    for file in files:
        assert run(["bisect", f"{files[0]}..{files[1]}", "--html", str(file), "--force"]) == 2
        assert "GOOD..BAD and --html name one file" in capsys.readouterr().err
    assert run(["bisect", "v1..v2", "--harness", harness, "--html", harness, "--force"]) == 2
    assert "--harness and --html name one file" in capsys.readouterr().err
    assert searched.requests == []
    assert {file.read_text() for file in files} == {"preset: gpt-tiny"}


def test_json_after_dashes_is_a_path(searched, capsys) -> None:
    run(["bisect", "v1", "--", "--json"])
    assert capsys.readouterr().out == ""


def test_files_are_written_also_where_nobody_reads_the_report(searched, harness, tmp_path: Path, monkeypatch) -> None:
    def gone(_report: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("oomscope.cli.bisect.command.print_report", gone)
    files = ["--html", str(tmp_path / "a.html"), "--csv", str(tmp_path / "tables")]
    assert run(["bisect", "v1..v2", "--harness", harness, *files]) == 141
    assert {"a.html", "tables"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("result", "code"), [(searches.COMMITS, ExitCode.OUTPUT_LOST), (searches.SUSPECTS, searches.SUSPECTS.exit_code)]
)
def test_a_page_that_cannot_be_written_in_the_end_takes_no_report_with_it(
    searched, harness, tmp_path: Path, monkeypatch, capsys, result, code: ExitCode
) -> None:
    page, folder = tmp_path / "report.html", tmp_path / "tables"

    def raced(*_args: object, **_titles: object) -> str:
        page.write_text("theirs")
        return "ours"

    monkeypatch.setattr("oomscope.report.html.pages.bisect_page", raced)
    searched.result = result
    words = ["bisect", "v1..v2", "--harness", harness, "--html", str(page), "--csv", str(folder)]
    assert run(words) == gravest([code, ExitCode.OUTPUT_LOST])
    said = capsys.readouterr()
    assert result.message in said.out
    assert f"{page}: file exists: somebody else wrote it meanwhile" in said.err
    assert page.read_text() == "theirs"
    assert (folder / "steps.csv").exists()


def test_html(searched, harness, tmp_path: Path, capsys) -> None:
    page = tmp_path / "report.html"
    assert run(["bisect", "v1..v2", "--harness", harness, "--html", str(page)]) == 0
    assert "keep the logits" in page.read_text()
    assert capsys.readouterr().err == f"Wrote {page}\n"
    assert run(["bisect", "v1..v2", "--harness", harness, "--html", str(page)]) == 2
    assert len(searched.requests) == 1
