"""What is walked besides commits, from the words of the command line to the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.changes.environment import EnvironmentDeltas
from oomscope.bisect.changes.packages import PackageDeltas
from oomscope.bisect.requests import CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.targets.subjects import OwnCode
from oomscope.bisect.vcs.ranges import FileAt, FileRange
from oomscope.cli.main import run
from tests.unit.report import searches

SEARCHES = ("change_bisect.bisect_configs", "change_bisect.bisect_environment", "commit_bisect.bisect_commits")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that searches were given; they probe nothing."""
    given: list[object] = []

    def search(request: object, **means: object) -> BisectResult:
        given.append(request)
        return searches.KEYS

    for name in SEARCHES:
        monkeypatch.setattr(f"oomscope.bisect.{name}", search)
    return given


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"good.yaml": "preset: gpt-tiny", "bad.yaml": "preset: gpt-tiny", "good.env": "A=1", "bad.env": "A=2\nB=3"}
    for name, text in {**texts, "harness.py": ""}.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in (*texts, "harness.py")}


def test_the_configuration_at_two_commits(requests: list[object], tmp_path: Path) -> None:
    options = ["--axis", "config", "--config", "conf/a.yaml", "--repo", str(tmp_path)]
    assert run(["bisect", "v1..v2", *options]) == 0
    (request,) = requests
    assert isinstance(request, ConfigRequest)
    good, bad = (FileAt(revision=revision, path="conf/a.yaml") for revision in ("v1", "v2"))
    assert (request.range, request.repo) == (FileRange(good=good, bad=bad), tmp_path)


def test_two_files_under_two_environments(requests: list[object], files: dict[str, str]) -> None:
    ends = f"{files['good.yaml']}..{files['bad.yaml']}"
    env = ["--env", f"{files['good.env']}..{files['bad.env']}", "--good-env", "C=x=y", "--bad-env", "B=4"]
    assert run(["bisect", ends, *env]) == 0
    (request,) = requests
    assert isinstance(request, ConfigRequest)
    (layer,) = request.layers
    assert isinstance(layer, EnvironmentDeltas)
    assert (layer.low, layer.high) == ({"A": "1", "C": "x=y"}, {"A": "2", "B": "4"})
    assert (layer.good, layer.bad) == (files["good.env"], files["bad.env"])


def test_one_commit_under_two_environments(requests: list[object], files: dict[str, str]) -> None:
    options = ["--axis", "environment", "--harness", files["harness.py"], "--bad-env", "A=2"]
    assert run(["bisect", "v1.2", *options]) == 0
    (request,) = requests
    assert isinstance(request, EnvironmentRequest)
    assert request.revision == "v1.2"


def test_two_lock_files(requests: list[object], files: dict[str, str], tmp_path: Path) -> None:
    for name, version in (("good.txt", "1.0"), ("bad.txt", "2.0")):
        (tmp_path / name).write_text(f"tinydep=={version}\n")
    options = ["--axis", "environment", "--harness", files["harness.py"], "--state", str(tmp_path / "state")]
    packages = f"{tmp_path / 'good.txt'}..{tmp_path / 'bad.txt'}"
    assert run(["bisect", "v1.2", *options, "--packages", packages, "--bad-env", "A=2"]) == 0
    (request,) = requests
    assert isinstance(request, EnvironmentRequest)
    variables, layer = request.layers
    assert isinstance(variables, EnvironmentDeltas)
    assert isinstance(layer, PackageDeltas)
    assert layer.keys == ("package:tinydep",)
    assert layer.overlays.root == tmp_path / "state" / "packages"


def test_one_file_under_two_environments(requests: list[object], files: dict[str, str]) -> None:
    assert run(["bisect", files["good.yaml"], "--axis", "environment", "--bad-env", "A=2"]) == 0
    (request,) = requests
    assert isinstance(request, ConfigRequest)
    assert request.range.good == request.range.bad == Path(files["good.yaml"])


def test_the_square_of_code_and_configuration(
    requests: list[object], files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []

    def search(request: object, config: str, **means: object) -> BisectResult:
        requests.append(request)
        paths.append(config)
        return searches.COMMITS

    monkeypatch.setattr("oomscope.bisect.code_vs_config.bisect_code_vs_config", search)
    options = ["--axis", "both", "--harness", files["harness.py"], "--config", "conf/a.yaml", "--hunks"]
    assert run(["bisect", "v1..v2", *options]) == 0
    (request,) = requests
    assert isinstance(request, CommitRequest)
    assert isinstance(request.subject, OwnCode)
    assert request.hunks
    assert paths == ["conf/a.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["v1..v2", "--harness", "h.py", "--bad-env", "A=1"], "a good and a bad side, over commits"),
        (["v1..v2", "--axis", "both", "--config", "a.yaml"], "same code at every commit"),
        (["v1..v2", "--axis", "both", "--harness", "h.py"], "--axis both without a configuration"),
        (["v1:a.yaml..v2:a.yaml", "--axis", "both"], "--axis both with two configuration files"),
        (["v1..v2", "--axis", "config"], "--axis config without a configuration"),
        (["v1..v2", "--axis", "environment", "--harness", "h.py", "--bad-env", "A=1"], "with two commits"),
        (["v1", "--axis", "environment", "--harness", "h.py"], "nothing says what changes"),
        (["v1", "--axis", "environment", "--harness", "h.py", "--bad-env", "A"], "is not NAME=VALUE"),
        (["v1", "--axis", "environment", "--harness", "h.py", "--env", "a..b"], "names no two files"),
        (["v1:a.yaml..v2:a.yaml", "--hunks"], "--hunks with two configuration files"),
        (
            ["v1", "--axis", "environment", "--harness", "h.py", "--bad-env", "A=1", "--hunks"],
            "--hunks with --axis env",
        ),
        (["v1:a.yaml..v2:a.yaml", "--axis", "commits"], "--axis commits with two configuration files"),
        (["v1:a.yaml..v2:a.yaml", "--config", "a.yaml"], "--config with two configuration files"),
    ],
)
def test_contradictions_are_one_line(
    requests: list[object],
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.py").touch()
    assert run(["bisect", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not requests
