"""The wheels that are carried to a machine without a network are all that oomscope needs beside what lies there."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from tests.conftest import ROOT

THERE = ("torch", "numpy", "numba", "pandas", "click", "rich", "pyyaml", "nvidia-ml-py", "pytest")
"""What the machine is expected to have, with all that these need; but for two, whose versions have to be ours."""
OURS_ANYWAY = {"jinja2", "markupsafe", "typing-extensions"}
FOR_TESTS = ("hypothesis", "pytest-timeout")
"""Imported by ``tests/conftest.py``, named by the settings of pytest."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names) -> set[str]:
    found, waiting = set(), [canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            wanted = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue  # of another platform
        found.add(name)
        waiting += [canonical(each.name) for each in wanted if not each.marker or each.marker.evaluate({"extra": ""})]
    return found


def test_nothing_is_missing_and_nothing_too_much():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = closure([*(Requirement(text).name for text in project["dependencies"]), *FOR_TESTS])
    lines = (ROOT / "tests" / "gpu" / "wheels.txt").read_text().splitlines()
    carried = {canonical(line) for line in lines if line and not line.startswith("#")}
    assert carried == (needed - closure(THERE)) | (OURS_ANYWAY & needed)


def test_every_wheel_has_a_version():
    pinned = {canonical(line.partition("==")[0]) for line in (ROOT / "requirements.lock").read_text().splitlines()}
    lines = (ROOT / "tests" / "gpu" / "wheels.txt").read_text().splitlines()
    assert {canonical(line) for line in lines if line and not line.startswith("#")} <= pinned
