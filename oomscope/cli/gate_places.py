"""Which lines of its repository a night is about: found where it was measured, since reports are made elsewhere too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.output import internal_error, remark
from oomscope.errors import GitError
from oomscope.files import real_path
from oomscope.gate.status import Status

if TYPE_CHECKING:
    from oomscope.gate.result import CaseResult, GateResult, Place
    from oomscope.gate.suite import Case, Suite


def with_places(night: GateResult, suite: Suite) -> GateResult:
    """Return ``night`` with the line of code that each case is about which is not as expected.

    A line counts where git knows its file in the suite's repository: not in an installed package, a submodule, another
    repository or what was never committed, for nobody who looks at the repository is shown a remark on those.
    """
    try:
        return _with_places(night, suite)
    except Exception:  # noqa: BLE001 - a defect here hides no status
        remark(f"oomscope: {internal_error()}")
        return night


def _with_places(night: GateResult, suite: Suite) -> GateResult:
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
    from oomscope.gate.result import Place
    from oomscope.report.ci.places import top_site

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
