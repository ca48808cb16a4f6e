"""What is installed: oomscope itself, the packages that it needs, extras, and git."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import oomscope
from oomscope.doctor.check import Check, State
from oomscope.files import real_path

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_CHECKED_APART = {"torch", "nvidia-ml-py"}
EXTRAS = (
    ("matplotlib", "plots", "pictures as PNG (explain --png, sweep --png, gate history --png)"),
    ("submitit", "slurm", "probes as cluster jobs (bisect --executor slurm)"),
)
"""Package, the extra that brings it, and what needs it."""


def package_checks() -> Iterator[Check]:
    """Yield the checks of what is installed beside torch."""
    yield _itself()
    for package, extra, purpose in EXTRAS:
        yield _extra(package, extra, purpose)
    if version_of("submitit") is not None and shutil.which("sbatch") is None:
        yield Check(
            part="Slurm",
            state=State.MISSING,
            found="no sbatch on PATH",
            disables="bisect --executor slurm",
            remedy="start the search on a machine that can submit jobs",
        )


def _itself() -> Check:
    found = f"oomscope {oomscope.__version__}, Python {platform.python_version()}"
    absent = [name for name in needed_packages() if name not in _CHECKED_APART and version_of(name) is None]
    if not absent:
        return Check(part="oomscope", state=State.OK, found=found)
    return Check(
        part="oomscope",
        state=State.FAILS,
        found=f"{found}; not installed: {', '.join(absent)}",
        disables="every probe",
        remedy=f"pip install {' '.join(absent)}",
    )


def needed_packages() -> list[str]:
    """Return the distributions that oomscope cannot do without, as its own metadata names them."""
    try:
        stated = metadata.requires("oomscope") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        stated = []
    names = (_NAME.match(line) for line in stated if "extra ==" not in line)
    return [name[0] for name in names if name]


def version_of(package: str) -> str | None:
    """Return the version of an installed distribution, None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extra(package: str, extra: str, purpose: str) -> Check:
    version = version_of(package)
    if version is not None:
        return Check(part=package, state=State.OK, found=f"{package} {version}")
    return Check(
        part=package,
        state=State.MISSING,
        found="not installed",
        disables=purpose,
        remedy=f"pip install 'oomscope[{extra}]'",
    )


OLDEST = (2, 31)
"""The first git that takes settings from GIT_CONFIG_COUNT, by which a search keeps the user's own out."""
_TIMEOUT_S = 10.0
_DUBIOUS = "dubious ownership"


def git_checks(folder: Path) -> Iterator[Check]:
    """Yield the checks of git, as it stands in ``folder``."""
    disables = "bisect over commits, gate run --bisect"
    said = _run(["git", "--version"], folder)
    if said is None:
        yield Check(
            part="git", state=State.MISSING, found="there is no git on PATH", disables=disables, remedy="install git"
        )
        return
    version = re.search(r"\d+\.\d+(\.\d+)*", said.stdout)
    if version is None:
        found = (said.stdout or said.stderr).strip().partition("\n")[0] or f"status {said.returncode}"
        yield Check(
            part="git", state=State.MISSING, found=f"git does not run: {found}", disables=disables, remedy="mend git"
        )
        return
    major, minor = (int(number) for number in version[0].split(".")[:2])
    if (major, minor) < OLDEST:
        remedy = f"install git {OLDEST[0]}.{OLDEST[1]} or newer"
        yield Check(part="git", state=State.MISSING, found=f"git {version[0]}", disables=disables, remedy=remedy)
        return
    yield Check(part="git", state=State.OK, found=f"git {version[0]}", values={"version": version[0]})
    where = _run(["git", "rev-parse", "--show-toplevel"], folder)
    if where is not None and where.returncode and _DUBIOUS in where.stderr:
        yield Check(
            part="git",
            state=State.NOTE,
            found="this repository belongs to another user",
            disables="git refuses it (safe.directory); bisect and gate read what they were told to, commands that they "
            "run may not",
            remedy=f"git config --global --add safe.directory {shlex.quote(_refused(where.stderr, folder))}",
        )


def _refused(said: str, folder: Path) -> str:
    """Return the repository that git names, to the folder of which its trust is bound; else where the user stands."""
    named = re.search(rf"{_DUBIOUS} in repository at '(.+)'", said)
    return named[1] if named is not None else str(real_path(folder))


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Return what git said; None where there is none, or it does not answer."""
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
