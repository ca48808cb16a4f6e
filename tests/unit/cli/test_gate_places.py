"""A night names a line of code only where a reader of the suite's repository can look at it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.gate.checkouts import home_of, with_places
from oomscope.gate.night.result import CaseResult, Culprit, GateResult, GrownLine, Place
from oomscope.gate.night.status import Status
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
    """A repository with a suite, code in a folder, a submodule in it, and a file that was never committed."""
    folder = tmp_path_factory.mktemp("places")
    other = new_repo(folder / "other")
    commit(other, "Begin", {"layer.py": ""})
    repo = new_repo(folder / "repo")
    commit(repo, "Begin", FILES)
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "code/module")
    git(repo, "commit", "--quiet", "--message", "Add a module")
    (repo / "code" / "generated.py").touch()
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
        ("generated.py", None),
        ("module/layer.py", None),
        ("../odd/file.py", None),
        ("/usr/lib/python3/site-packages/x.py", None),
        ("", None),
    ],
)
def test_a_line_is_one_of_a_file_that_git_knows(repo: Path, file: str, path: str | None) -> None:
    assert placed(repo, grown(at(file))) == (None if path is None else Place(path=path, line=7))


def test_without_a_culprit_it_is_the_line_that_holds_most_or_at_which_memory_ran_out(repo: Path) -> None:
    held = [("train/step.py", 3, 3), ("[odd] *.py", 2, 2), ("[odd] *.py", 2, 2)]
    sites = tuple(
        SiteBytes(site=at(file, line), bytes=size * MiB, count=1, category=str(number))
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


def test_outside_of_git_and_without_a_checkout_there_is_none(repo: Path, tmp_path: Path) -> None:
    suite = load_suite(repo / "ci" / "memory.yaml")
    found = night(1, replace(grown(at("train/step.py")), checkout=str(repo / "code")))
    assert with_places(found, suite).cases[0].place is None
    bundled = replace(found, cases=(replace(found.cases[0], checkout=None),), home=home_of(suite.path))
    assert with_places(replace(bundled, suite=str(suite.path)), suite).cases[0].place is None
