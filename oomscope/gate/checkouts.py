"""Where a case of the gate stands in git: which commit is checked out there, and which of earlier ones is nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.errors import GitError
from oomscope.files import real_path
from oomscope.gate.night.status import Status

if TYPE_CHECKING:
    from oomscope.bisect.vcs.git import Git
    from oomscope.gate.night.result import CaseResult, GateResult, Place, Standing
    from oomscope.gate.night.run import StandsAt
    from oomscope.gate.suite.identity import Home
    from oomscope.gate.suite.suite import Case, Suite
    from oomscope.snapshot.sites import Site


def folder_of(case: Case) -> Path:
    """Return the folder whose history can change what ``case`` measures."""
    if case.own_kind is not None:
        return case.checkout
    return case.path.parent if case.kind == "config" else case.folder


def newest_before(folder: Path, head: str, commits: Collection[str]) -> str | None:
    """Return that of ``commits`` in the history of ``head`` which none of the others there comes after.

    None where that history has none of them. Dates do not count, and commits that the repository lacks do no harm.

    Raises:
        GitError: the history cannot be read.
    """
    from oomscope.bisect.vcs.git import Git

    history = Git(folder, (folder,)).text("rev-list", "--topo-order", "--end-of-options", head).split()
    return next((commit for commit in history if commit in commits), None)


def place_inside(file: Path) -> str:
    """Return what :func:`path_inside` does; empty where ``file`` lies in no repository."""
    try:
        return path_inside(file)
    except GitError:
        return ""


def path_inside(file: Path) -> str:
    """Return the path of ``file`` from the root of its repository, with slashes.

    Raises:
        GitError: it lies in none, or git cannot read it.
    """
    from oomscope.bisect.vcs.git import Git

    folder = real_path(file.parent)
    return Git(folder, (folder,)).text("rev-parse", "--show-prefix") + file.name


def standings() -> StandsAt:
    """Return what says where a case stands: None where there is no repository, or no commit yet.

    Each repository is looked at once, so that all cases of a night stand where they stood when it began.
    """
    known: dict[Path, Standing | None] = {}

    def standing_of(case: Case) -> Standing | None:
        folder = real_path(folder_of(case))
        if folder not in known:
            known[folder] = _standing(folder)
        standing = known[folder]
        return standing if standing is None or not _is_in_no_commit(case, folder) else replace(standing, dirty=True)

    return standing_of


def _is_in_no_commit(case: Case, folder: Path) -> bool:
    """Whether the configuration or harness lies in the repository of ``folder``, and git does not know it.

    A harness elsewhere is kept out of the history on purpose, and says nothing of a commit.
    """
    from oomscope.bisect.vcs.git import Git

    if case.kind not in {"config", "harness"}:
        return False
    git, path = Git(folder, (folder,)), real_path(case.path)
    root = Path(git.text("rev-parse", "--show-toplevel"))
    if not path.is_relative_to(root):
        return False
    return not git.listed("ls-files", "-z", "--", f":(top,literal){path.relative_to(root)}")


def _standing(folder: Path) -> Standing | None:
    from oomscope.bisect.vcs.repository import Repository
    from oomscope.bisect.vcs.uncommitted import has_uncommitted_changes
    from oomscope.gate.night.result import Standing

    try:
        commit = Repository.open(folder).resolve("HEAD")
        dirty = has_uncommitted_changes(folder)
    except (GitError, OSError):  # of a folder that nobody can enter the case itself says what is wrong
        return None
    return Standing(commit=commit.hash, subject=commit.subject, dirty=dirty)


def home_of(file: Path) -> Home | None:
    """Return where ``file`` lies in its repository; None where it lies in none, or git cannot read it."""
    from oomscope.bisect.vcs.git import Git
    from oomscope.gate.suite.identity import Home

    target = real_path(file)
    git = Git(target.parent, (target.parent,))
    try:
        path = git.text("rev-parse", "--show-prefix") + target.name
    except GitError:
        return None
    return Home(path=path, first_commit=_first_commit(git), remote=_remote(git))


def _first_commit(git: Git) -> str:
    """Return the commit with which the history began; empty before it did, or where it is cut off."""
    try:
        if git.text("rev-parse", "--is-shallow-repository") == "true":
            return ""
        return git.text("rev-list", "--first-parent", "--max-parents=0", "HEAD")
    except GitError:
        return ""


def _remote(git: Git) -> str:
    """Return what the repository is called at ``origin``, or at its only remote; empty where it has none."""
    from oomscope.gate.suite.identity import remote_name

    try:
        names = git.text("remote").splitlines()
        name = "origin" if "origin" in names else names[0] if len(names) == 1 else None
        return remote_name(git.text("config", "--get", f"remote.{name}.url")) if name else ""
    except GitError:
        return ""


def with_places(night: GateResult, suite: Suite) -> GateResult:
    """Return ``night`` with the line of code that each case is about which is not as expected.

    A line counts where git knows its file in the suite's repository: not in an installed package, a submodule, another
    repository or what was never committed, for nobody who looks at the repository is shown a remark on those.
    """
    if night.home is None:
        return night
    root = Path(night.suite.removesuffix(night.home.path))
    measured = {case.name: case for case in suite.cases}
    wanted = [_places(case, measured[case.name], root) for case in night.cases]
    known = _known(root, {place.path for places in wanted for place in places})
    told = [next((place for place in places if place.path in known), None) for places in wanted]
    cases = (replace(case, place=place) for case, place in zip(night.cases, told, strict=True))
    return replace(night, cases=tuple(cases))


def _places(case: CaseResult, measured: Case, root: Path) -> list[Place]:
    """Return where under ``root`` the line may lie: lines count from the checkout, those of a harness from its folder.

    Lines of installed packages look the same, which is why git has to know the file.
    """
    from oomscope.gate.night.result import Place

    site = top_site(case)
    if case.status is Status.SAME or case.checkout is None or site is None or not site.file:
        return []
    folders = [Path(case.checkout), *([real_path(measured.path).parent] if measured.kind == "harness" else [])]
    files = [folder / site.file for folder in folders]
    return [
        Place(path=file.relative_to(root).as_posix(), line=max(1, site.line))
        for file in files
        if file.is_relative_to(root) and ".." not in file.parts
    ]


def _known(root: Path, paths: set[str]) -> frozenset[str]:
    """Return those of ``paths`` that git tracks in the repository at ``root``."""
    from oomscope.bisect.vcs.git import Git

    if not paths:
        return frozenset()
    try:
        return frozenset(Git(root, (root,)).listed("ls-files", "-z", "--", *(f":(literal){path}" for path in paths)))
    except GitError:
        return frozenset()


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
        held[row.site] += row.bytes
    return held.most_common(1)[0][0] if held else None
