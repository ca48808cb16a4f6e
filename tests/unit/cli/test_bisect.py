"""``oomscope bisect``: from the command line to the request, and from the result to output and exit code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oomscope.bisect.changes.environment import EnvironmentDeltas
from oomscope.bisect.changes.packages import PackageDeltas
from oomscope.bisect.requests import CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.search.steps import Threshold
from oomscope.bisect.targets.subjects import OwnCode
from oomscope.bisect.vcs.ranges import FileAt, FileRange, RevisionRange
from oomscope.cli.main import run
from oomscope.errors import ExitCode, gravest
from oomscope.units import GiB, MiB
from tests.unit.bisect.repos import Repo
from tests.unit.report import searches

SEARCHES = (
    "commit_bisect.bisect_commits",
    "change_bisect.bisect_configs",
    "change_bisect.bisect_environment",
    "code_vs_config.bisect_code_vs_config",
)
CONFIG = ("v1..v2", "--config", "a.yaml")


class Searched:
    """A search that probes nothing: answers with ``result`` and keeps the requests that it was given."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.result = searches.COMMITS

    def __call__(self, request: Any, *_config: str, reporter: Any) -> BisectResult:
        self.requests.append(request)
        reporter.planned(SearchPlan(title="t", good="a", bad="b", candidates=1, considered=1, probes_at_most=3))
        for record in self.result.probes:
            reporter.probing("name", record.number)
            reporter.probed(record)
        return self.result

    @property
    def request(self) -> Any:
        """The only request."""
        (request,) = self.requests
        return request


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Searched:
    search = Searched()
    for name in SEARCHES:
        monkeypatch.setattr(f"oomscope.bisect.{name}", search)
    return search


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A harness, in a folder with two configurations and two files of variables."""
    monkeypatch.chdir(tmp_path)
    texts = {"good.yaml": "preset: gpt-tiny", "bad.yaml": "preset: gpt-tiny", "good.env": "A=1", "bad.env": "A=2\nB=3"}
    for name, text in {**texts, "h.py": "", "good.txt": "tinydep==1.0\n", "bad.txt": "tinydep==2.0\n"}.items():
        Path(name).write_text(text)
    return "h.py"


@pytest.mark.parametrize(("result", "code"), [(searches.COMMITS, 0), (searches.NO_CULPRIT, 0), (searches.SUSPECTS, 7)])
def test_outcomes_and_exit_codes(searched: Searched, harness: str, capsys, result: BisectResult, code: int) -> None:
    searched.result = result
    assert run(["bisect", "v1..v2", "--harness", harness]) == code
    out = capsys.readouterr().out
    assert "  1  good        aaaaaaaaaa start" in out
    assert result.message in out


def test_json_is_one_document_and_the_answers_go_to_stderr(searched: Searched, capsys) -> None:
    assert run(["bisect", *CONFIG, "--json", "--verbose"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["schema_version"], document["outcome"]) == (3, "culprit")
    assert document["culprit"]["delta"] == {"requested_bytes": 2 * GiB, "reserved_bytes": GiB}
    assert "  1  good" in captured.err
    assert run(["bisect", *CONFIG, "--json", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_the_document_and_the_tables_have_the_steps(searched: Searched, tmp_path: Path, capsys) -> None:
    searched.result = searches.STEPS
    assert run(["bisect", *CONFIG, "--steps", "--json", "--csv", str(tmp_path / "tables")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["waterfall"]["threshold"] == {"requested_bytes": 0, "overhead_bytes": 20 * MiB}
    assert document["waterfall"]["unseen"][0]["commits"] == 5
    assert document["heaviest"] == searches.MIDDLE
    assert document["steps"][0]["dominant"]["category"] == "temporary"
    header, first, *_ = (tmp_path / "tables" / "steps.csv").read_text().splitlines()
    assert {"delta_overhead_bytes", "since_good_reserved_bytes", "dominant_file"} <= set(header.split(","))
    assert first.startswith(searches.MIDDLE)


def test_a_harness_over_commits(searched: Searched, harness: str, tmp_path: Path) -> None:
    options = ["--limit", "7GiB", "--iterations", "4", "--bad", "requested>1GiB", "--first-parent", "--deadline", "60"]
    state = ["--repo", str(tmp_path), "--fresh", "--state", str(tmp_path / "state")]
    words = ["v1..v2", "device.stream_lag=2", *options, *state, "--harness", harness, "--", "src", "-x"]
    assert run(["bisect", *words]) == 0
    request = searched.request
    assert isinstance(request, CommitRequest)
    assert request.range == RevisionRange(good="v1", bad="v2")
    assert (request.repo, request.paths, request.first_parent) == (tmp_path, ("src", "-x"), True)
    assert (request.bad, request.deadline_s, request.use_cache) == (Bad(name="requested", threshold=GiB), 60.0, False)
    assert request.state_dirs.root == tmp_path / "state"
    assert isinstance(request.subject, OwnCode)
    assert request.subject.settings.device.limit == 7 * GiB
    assert set(request.subject.overrides) == {"device.stream_lag=2", "device.limit=7GiB", "probe.iterations=4"}


REQUESTS: dict[str, tuple[list[str], Callable[[Any], object], object]] = {
    "no steps": ([*CONFIG], lambda request: request.steps, None),
    "steps": ([*CONFIG, "--steps"], lambda request: request.steps, StepsWanted()),
    "min step": (
        [*CONFIG, "--min-step", "1MiB"],
        lambda request: request.steps,
        StepsWanted(threshold=Threshold(requested_bytes=MiB, overhead_bytes=MiB)),
    ),
    "exhaustive": (
        [*CONFIG, "--exhaustive"],
        lambda request: request.steps.looks >= 2**31 - 1,
        True,
    ),
    "exhaustive in part": (
        ["--exhaustive=20", *CONFIG],
        lambda request: request.steps,
        StepsWanted(looks=20),
    ),
    "one job": ([*CONFIG], lambda request: request.jobs, 1),
    "jobs": ([*CONFIG, "--jobs", "3"], lambda request: request.jobs, 3),
    "open": (
        ["..v2", "--find-good", "--config", "a.yaml"],
        lambda request: (request.range.is_open, request.range.bad),
        (True, "v2"),
    ),
    "noise of the backend": ([*CONFIG], lambda request: request.noise, None),
    "confidence": (
        [*CONFIG, "--confidence", "0.99"],
        lambda request: request.noise,
        Noise(confidence=0.99, repeats=20),
    ),
    "repeats": ([*CONFIG, "--repeats", "1"], lambda request: request.noise, Noise(confidence=0.95, repeats=1)),
    "here": ([*CONFIG, "--executor", "local"], lambda request: request.cluster, None),
    "slurm": (
        [*CONFIG, "--executor", "slurm", "--slurm", "partition=gpu", "--slurm", "exclusive"],
        lambda request: request.cluster,
        {"partition": "gpu", "exclusive": True},
    ),
    "two files": (
        ["good.yaml..bad.yaml", "--gpu", "h200"],
        lambda request: (type(request), request.range, request.overrides),
        (ConfigRequest, FileRange(good=Path("good.yaml"), bad=Path("bad.yaml")), ("device.gpu=h200",)),
    ),
    "a file at two commits": (
        ["v1..v2", "--axis", "config", "--config", "conf/a.yaml"],
        lambda request: request.range,
        FileRange(good=FileAt(revision="v1", path="conf/a.yaml"), bad=FileAt(revision="v2", path="conf/a.yaml")),
    ),
    "one file under two environments": (
        ["good.yaml", "--axis", "environment", "--bad-env", "A=2"],
        lambda request: request.range,
        FileRange(good=Path("good.yaml"), bad=Path("good.yaml")),
    ),
    "one commit under two environments": (
        ["v1.2", "--axis", "environment", "--harness", "h.py", "--bad-env", "A=2", "--repeats", "3"],
        lambda request: (type(request), request.revision, request.noise),
        (EnvironmentRequest, "v1.2", Noise(repeats=3)),
    ),
    "code and configuration": (
        ["v1..v2", "--axis", "both", "--harness", "h.py", "--config", "conf/a.yaml", "--hunks"],
        lambda request: (type(request), type(request.subject), request.hunks),
        (CommitRequest, OwnCode, True),
    ),
}


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_asked_for(searched: Searched, name: str) -> None:
    words, of, expected = REQUESTS[name]
    assert run(["bisect", *words]) in {0, 7}
    assert of(searched.request) == expected


@pytest.mark.usefixtures("harness")
def test_the_changes_of_an_environment(searched: Searched, tmp_path: Path) -> None:
    env = ["--env", "good.env..bad.env", "--good-env", "C=x=y", "--bad-env", "B=4"]
    words = [
        "v1.2",
        "--axis",
        "environment",
        "--harness",
        "h.py",
        "--state",
        "state",
        "--packages",
        "good.txt..bad.txt",
    ]
    assert run(["bisect", *words, *env]) == 0
    variables, packages = searched.request.layers
    assert isinstance(variables, EnvironmentDeltas)
    assert (variables.low, variables.high) == ({"A": "1", "C": "x=y"}, {"A": "2", "B": "4"})
    assert (variables.good, variables.bad) == ("good.env", "bad.env")
    assert isinstance(packages, PackageDeltas)
    assert packages.keys == ("package:tinydep",)
    assert packages.overlays.root == tmp_path / "state" / "packages"


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "Missing argument"),
        ("v1", "is not a range; write GOOD..BAD"),
        ("resum", "is not a range; did you mean oomscope bisect resume?"),
        ("a.pickle.gz", "oomscope explain a.pickle.gz reads a memory snapshot"),
        ("v1..v2", "nothing says what to measure"),
        ("v1..v2 --config a.yaml --harness h.py", "both --config and --harness"),
        ("v1..v2 --axis config --config a.yaml --command x", "give --axis both to search"),
        ("v1..v2 --config a.yaml src", "write paths after --"),
        ("v1..v2 --config a.yaml --bad slow", "is not a class of failures"),
        ("v1..v2 --config a.yaml --limit x", "is not a size"),
        ("v1..v2 --harness h.py data.seq_length=1", "does not apply to a harness"),
        ("none.yaml..no.yaml", "no such configuration file"),
        ("-x..v2 --config a.yaml", "No such option"),
        ("v1..v2 --html /", "is a directory"),
        ("v1..v2 --config a.yaml --deadline -1", "'--deadline': -1.0 is not in the range x>=0"),
        ("v1..v2 --config a.yaml --min-step much", "much"),
        ("v1..v2 --config a.yaml --jobs many", "'many' is neither a whole number from 1 to 64 nor auto"),
        ("v1..v2 --config a.yaml --find-good", "names a good end"),
        ("..v2 --config a.yaml", "or add --find-good"),
        ("..v2 --config a.yaml --find-good --axis config", "--find-good with --axis config"),
        ("v1..v2 --config a.yaml --steps --axis config", "--steps with two configuration files"),
        ("v1..v2 --config a.yaml --confidence 1", "--confidence"),
        ("v1..v2 --config a.yaml --confidence 95%", "--confidence"),
        ("v1..v2 --config a.yaml --confidence 0.9 --repeats 1", "--confidence with --repeats 1"),
        ("v1..v2 --config a.yaml --executor slurm --slurm output=x", "output cannot be chosen"),
        ("v1..v2 --config a.yaml --executor slurm --slurm -p", "is not an option of sbatch"),
        ("v1..v2 --command x --exit-status --steps", "--steps needs bytes"),
        ("v1..v2 --command x --metric-regex (x) --bad capacity", "--bad capacity needs a snapshot"),
        ("v1..v2 --harness h.py --bad exit", "--bad exit without --command"),
        ("v1..v2 --harness h.py --exit-status", "--exit-status without --command"),
        ("v1..v2 --harness h.py --entry a:b", "both --harness and --entry"),
        ("v1..v2 --harness h.py --from nemo", "both --from and --harness"),
        ("v1..v2 --harness h.py --bad-env A=1", "a good and a bad side, over commits"),
        ("good.yaml..bad.yaml --first-parent", "--first-parent with two configuration files"),
        ("good.yaml..bad.yaml --command x", "commit them as one and search with --axis both --config PATH-IN-REPO"),
        ("v1:a.yaml..v2:a.yaml --hunks", "--hunks with two configuration files"),
        ("v1:a.yaml..v2:a.yaml --axis commits", "--axis commits with two configuration files"),
        ("v1:a.yaml..v2:a.yaml --axis both", "--axis both with two configuration files"),
        ("v1:a.yaml..v2:a.yaml --config a.yaml", "--config with two configuration files"),
        ("v1..v2 --axis both --config a.yaml", "same code at every commit"),
        ("v1..v2 --axis both --harness h.py", "--axis both without a configuration"),
        ("v1..v2 --axis config", "--axis config without a configuration"),
        ("v1..v2 --axis environment --harness h.py --bad-env A=1", "with two commits"),
        ("v1 --axis environment --harness h.py", "nothing says what changes"),
        ("v1 --axis environment --harness h.py --bad-env A", "is not NAME=VALUE"),
        ("v1 --axis environment --harness h.py --env a..b", "does not name two files"),
        ("v1 --axis environment --harness h.py --bad-env A=1 --hunks", "--hunks with --axis env"),
        ("good.yaml..bad.yaml --html good.yaml --force", "GOOD..BAD and --html name one file"),
        ("v1..v2 --harness h.py --html h.py --force", "--harness and --html name one file"),
    ],
)
def test_what_cannot_be_understood_is_one_line(searched: Searched, capsys, arguments: str, words: str) -> None:
    assert run(["bisect", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert searched.requests == []


def test_files_of_the_users_own_program_are_refused_with_the_way_to_search_them(tmp_path: Path, capsys) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("model: {width: 64}\n")
    bad.write_text("model: {width: 128}\n")
    assert run(["bisect", f"{good}..{bad}", "--state", str(tmp_path / "state")]) == 2
    said = capsys.readouterr().err
    assert "unknown key model.width" in said
    assert "commit them as one and search with --axis both --config PATH-IN-REPO" in said


def test_a_file_in_place_of_a_directory_is_one_line(harness: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "file"
    file.touch()
    repo = str(Repo(tmp_path / "repo").path)
    for options in (["--state", str(file), "--repo", repo], ["--repo", str(file)]):
        assert run(["bisect", "v1..v2", "--harness", harness, *options]) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert options[0] in said
        assert said.count("\n") == 1


def test_files_are_written_also_where_nobody_reads_the_report(searched: Searched, tmp_path: Path, monkeypatch) -> None:
    def gone(_report: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("oomscope.cli.bisect.command.print_report", gone)
    files = ["--html", str(tmp_path / "a.html"), "--csv", str(tmp_path / "tables")]
    assert run(["bisect", *CONFIG, *files]) == 141
    assert {"a.html", "tables"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("result", [searches.COMMITS, searches.SUSPECTS])
def test_a_page_that_cannot_be_written_in_the_end_takes_no_report_with_it(
    searched: Searched, tmp_path: Path, monkeypatch, capsys, result: BisectResult
) -> None:
    def broken(*_args: object, **_titles: object) -> str:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("oomscope.report.html.pages.bisect_page", broken)
    searched.result = result
    words = ["--html", str(tmp_path / "report.html"), "--csv", str(tmp_path / "tables")]
    assert run(["bisect", *CONFIG, *words]) == gravest([result.exit_code, ExitCode.OUTPUT_LOST])
    said = capsys.readouterr()
    assert result.message in said.out
    assert "report.html: cannot be used: No space left on device" in said.err
    assert (tmp_path / "tables" / "steps.csv").exists()


@pytest.mark.parametrize("lacking", ["srun", "submitit"])
def test_jobs_need_slurm_and_submitit(tmp_path: Path, monkeypatch, capsys, lacking: str) -> None:
    programs, git = tmp_path / "bin", shutil.which("git")
    programs.mkdir()
    assert git is not None
    (programs / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(programs))
    if lacking == "submitit":
        monkeypatch.setitem(sys.modules, "submitit", None)
    repo = Repo(tmp_path / "repo")
    first, *_ = repo.import_line("a.yaml", ["preset: gpt-tiny\n", "preset: gpt-tiny\nseed: 2\n"])
    words = [f"{first}..main", "--repo", str(repo.path), "--config", "a.yaml", "--state", str(tmp_path / "state")]
    code = run(["bisect", *words, "--executor", "slurm"])
    said = capsys.readouterr().err
    if lacking == "srun":
        assert (code, "there is no srun here" in said) == (ExitCode.MACHINE_UNFIT, True)
    else:
        assert (code, "pip install 'oomscope[slurm]'" in said) == (ExitCode.USAGE, True)
