"""oomscope itself, the packages that it needs, and those that are extras."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from importlib import metadata

import oomscope
from oomscope.doctor.check import Check, State

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
