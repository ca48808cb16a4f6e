"""Where cases and suites are in git: the commit of a checkout, the repository of a suite, the line of a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from oomscope.bisect.vcs.git import Git
from oomscope.bisect.vcs.repository import Repository
from oomscope.bisect.vcs.uncommitted import has_uncommitted_changes
from oomscope.errors import GitError
from oomscope.files import real_path
from oomscope.gate.night.result import CaseResult, GateResult, MeasuredCommit, Place
from oomscope.gate.night.run import CommitOf
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Home, remote_name
from oomscope.gate.suite.suite import Case, Suite
from oomscope.snapshot.sites import Site


def folder_of(case: Case) -> Path:
    """Return the folder whose history can change what ``case`` measures."""
    if case.own_kind is not None:
        return case.checkout
    return case.path.parent if case.kind == "config" else case.folder


def newest_before(folder: Path, head: str, commits: Collection[str]) -> str | None:
    """Return that of ``commits`` which is nearest to ``head`` in its history; None where it has none of them.

    Raises:
        GitError: the history cannot be read.
    """
    history = _git(folder).text("rev-list", "--topo-order", "--end-of-options", head).split()
    return next((commit for commit in history if commit in commits), None)


def path_inside(file: Path) -> str:
    """Return the path of ``file`` from the root of its repository, with slashes.

    Raises:
        GitError: it lies in none, or git cannot read it.
    """
    return _git(file.parent).text("rev-parse", "--show-prefix") + file.name


def commit_finder() -> CommitOf:
    """Return a function that gives the commit of a case; None where there is no repository, or no commit yet.

    Each repository is read once, so that all cases of a night have the commit at which it began.
    """
    known: dict[Path, MeasuredCommit | None] = {}

    def commit_of(case: Case) -> MeasuredCommit | None:
        folder = real_path(folder_of(case))
        if folder not in known:
            known[folder] = _measured_commit(folder)
        return known[folder]

    return commit_of


def _measured_commit(folder: Path) -> MeasuredCommit | None:
    try:
        commit = Repository.open(folder).resolve("HEAD")
        return MeasuredCommit(commit=commit.hash, subject=commit.subject, dirty=has_uncommitted_changes(folder))
    except (GitError, OSError):  # the case itself reports a folder that cannot be entered
        return None


def home_of(file: Path) -> Home | None:
    """Return where ``file`` lies in its repository; None where it lies in none, or git cannot read it."""
    target = real_path(file)
    git = _git(target.parent)
    try:
        path = path_inside(target)
    except GitError:
        return None
    is_shallow = _git_output(git, "rev-parse", "--is-shallow-repository") == "true"
    first_commit = "" if is_shallow else _git_output(git, "rev-list", "--first-parent", "--max-parents=0", "HEAD")
    names = _git_output(git, "remote").splitlines()
    name = "origin" if "origin" in names else names[0] if len(names) == 1 else ""
    url = _git_output(git, "config", "--get", f"remote.{name}.url") if name else ""
    return Home(path=path, first_commit=first_commit, remote=remote_name(url))


def _git(folder: Path) -> Git:
    return Git(real_path(folder), (real_path(folder),))


def _git_output(git: Git, *words: str) -> str:
    """Return the output of git; empty where it fails."""
    try:
        return git.text(*words)
    except GitError:
        return ""


def with_places(night: GateResult, suite: Suite) -> GateResult:
    """Return ``night`` with the line of code for each case that is not as expected.

    A line counts where its file lies in the suite's repository.
    """
    if night.home is None:
        return night
    root = Path(night.suite.removesuffix(night.home.path))
    measured = {case.name: case for case in suite.cases}
    return replace(
        night, cases=tuple(replace(case, place=_place(case, measured[case.name], root)) for case in night.cases)
    )


def _place(case: CaseResult, measured: Case, root: Path) -> Place | None:
    """Return the line under ``root``: lines count from the checkout, those of a harness from its folder."""
    site = top_site(case)
    if case.status is Status.SAME or case.checkout is None or site is None or not site.file:
        return None
    folders = [Path(case.checkout), *([real_path(measured.path).parent] if measured.kind == "harness" else [])]
    files = [folder / site.file for folder in folders]
    found = next(
        (file for file in files if file.is_relative_to(root) and ".." not in file.parts and file.is_file()), None
    )
    return None if found is None else Place(path=found.relative_to(root).as_posix(), line=max(1, site.line))


def top_site(case: CaseResult) -> Site | None:
    """Return the line of code that a case is about; None where nothing was measured.

    That is the line which grew most with the culprit, else at which memory ran out, else which holds most at the peak.
    """
    if case.culprit is not None and case.culprit.grown:
        return case.culprit.grown[0].site
    if case.probe is None:
        return None
    if case.probe.oom is not None and case.probe.oom.site is not None:
        return case.probe.oom.site
    held: Counter[Site] = Counter()
    for row in case.probe.peak.sites if case.probe.peak is not None else ():
        held[replace(row.site, module="")] += row.bytes
    return held.most_common(1)[0][0] if held else None
