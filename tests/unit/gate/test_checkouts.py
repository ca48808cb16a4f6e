"""Where a suite, its cases and the lines of a night lie in git."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.gate.checkouts import home_of, with_places
from oomscope.gate.night.result import CaseResult, Culprit, GateResult, GrownLine, Place
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import remote_name
from oomscope.gate.suite.suite import load_suite
from oomscope.snapshot.sites import Site, SiteBytes
from oomscope.units import GiB, MiB
from tests.integration.program import commit, git, new_repo
from tests.unit.gate.nights import case_result, measured, night, out_of_memory

SUITE = "cases: [{name: tiny, harness: drive/harness.py, repo: ../code}]\n"
FILES = {
    "ci/memory.yaml": SUITE,
    "ci/drive/harness.py": "",
    "code/train/step.py": "",
    "code/[odd] *.py": "",
    "odd/file.py": "",
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a suite, and code in a folder."""
    repo = new_repo(tmp_path_factory.mktemp("places") / "repo")
    commit(repo, "Begin", FILES)
    return repo


def at(file: str, line: int = 7) -> Site:
    return Site(file=file, line=line, function="step")


def grown(*sites: Site) -> CaseResult:
    """A case whose culprit made these lines grow."""
    rows = tuple(GrownLine(site=site, category="activation", delta_bytes=MiB) for site in sites)
    culprit = Culprit(outcome="culprit", message="", commit="c" * 40, grown=rows)
    return replace(case_result(1, Status.WORSE), culprit=culprit)


def placed(repo: Path, case: CaseResult) -> Place | None:
    path = repo / "ci" / "memory.yaml"
    found: GateResult = replace(night(1, replace(case, checkout=str(repo / "code"))), suite=str(path))
    return with_places(replace(found, home=home_of(path)), load_suite(path)).cases[0].place


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("train/step.py", "code/train/step.py"),
        ("[odd] *.py", "code/[odd] *.py"),
        ("harness.py", "ci/drive/harness.py"),
        ("torch/nn/modules/linear.py", None),
        ("../odd/file.py", None),
        ("/usr/lib/python3/site-packages/x.py", None),
        ("", None),
    ],
)
def test_a_line_is_one_of_a_file_in_the_repository(repo: Path, file: str, path: str | None) -> None:
    assert placed(repo, grown(at(file))) == (None if path is None else Place(path=path, line=7))


def test_without_a_culprit_it_is_the_line_that_holds_most_or_at_which_memory_ran_out(repo: Path) -> None:
    held = [("train/step.py", 3, 3), ("[odd] *.py", 2, 2), ("[odd] *.py", 2, 2)]
    sites = tuple(
        SiteBytes(site=replace(at(file, line), module=str(number)), bytes=size * MiB, count=1, category=str(number))
        for number, (file, line, size) in enumerate(held)
    )
    fits, failed = measured(GiB), out_of_memory()
    worse = case_result(1, Status.WORSE)
    most = replace(worse, probe=replace(fits, peak=replace(fits.peak, sites=sites)))
    assert placed(repo, most) == Place(path="code/[odd] *.py", line=2)
    oom = replace(worse, probe=replace(failed, oom=replace(failed.oom, site=at("train/step.py", 0))))
    assert placed(repo, oom) == Place(path="code/train/step.py", line=1)
    assert placed(repo, replace(most, status=Status.SAME)) is None
    assert placed(repo, worse) is None


def test_every_checkout_knows_the_same_home(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    first = commit(repo, "Begin", {"ci/memory.yaml": "cases: []"})
    commit(repo, "Go on", {"b": "2"})
    here = home_of(repo / "ci" / "memory.yaml")
    assert here is not None
    assert (here.path, here.first_commit, here.remote) == ("ci/memory.yaml", first, "")
    git(tmp_path, "clone", "--quiet", str(repo), "whole")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repo}", "cut")
    whole, cut = (home_of(tmp_path / name / "ci" / "memory.yaml") for name in ("whole", "cut"))
    assert whole is not None
    assert cut is not None
    assert whole.remote == cut.remote == str(repo).strip("/")
    assert (whole.first_commit, cut.first_commit) == (first, "")


def test_without_a_repository_or_a_commit_little_is_known(tmp_path: Path) -> None:
    (tmp_path / "memory.yaml").touch()
    assert home_of(tmp_path / "memory.yaml") is None
    repo = new_repo(tmp_path / "repo")
    (repo / "memory.yaml").touch()
    home = home_of(repo / "memory.yaml")
    assert home is not None
    assert (home.path, home.repository) == ("memory.yaml", "")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://token-of-tonight:s3cret@git.example:8443/group/sub/project.git", "group/sub/project"),
        ("git@git.example:group/sub/project.git", "group/sub/project"),
        ("ssh://git@git.example:22/group/sub/project/", "group/sub/project"),
        ("alias:project", "project"),
        ("/srv/git/project.git", "srv/git/project"),
        ("file:///srv/project/.git", "srv/project"),
        ("/srv/a:b/project", "srv/a:b/project"),
    ],
)
def test_a_remote_is_called_the_same_however_it_is_reached(url: str, name: str) -> None:
    assert remote_name(url) == name
