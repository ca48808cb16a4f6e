"""What `make install` puts into the project's own environment: all that is needed, and nothing of NVIDIA's."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = {
    canonicalize_name(name): version
    for name, _, version in (
        line.partition("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if line[0] != "#"
    )
}
STOOD_IN_FOR = re.compile(r"nvidia-(?!ml-py$)|cuda-|triton$")
"""What torch's CUDA build declares and is never installed: the virtual card, or nothing, takes its place."""


def needed() -> dict[str, str]:
    """Return every distribution that oomscope, its extras and its build need, with who needs it."""
    found = {canonicalize_name(name): "the build" for name in ("hatchling", "editables")}
    left = [("oomscope", {"dev", "plots", "probe", "slurm"}), *((name, set()) for name in found)]
    while left:
        name, extras = left.pop()
        for text in metadata.requires(name) or []:
            wanted = Requirement(text)
            if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                continue
            key = canonicalize_name(wanted.name)
            if key not in found and key != "oomscope" and not STOOD_IN_FOR.match(key):
                found[key] = name
                left.append((wanted.name, set(wanted.extras)))
    return found


def test_the_lock_has_all_that_is_needed_and_nothing_of_nvidia_s() -> None:
    assert {name: by for name, by in needed().items() if name not in LOCK} == {}
    assert [name for name in LOCK if STOOD_IN_FOR.match(name)] == []
    assert all(LOCK.values()), "every package has its version"


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="this is not the project's own environment")
def test_no_library_of_nvidia_s_came_along() -> None:
    installed = {canonicalize_name(distribution.name) for distribution in metadata.distributions()}
    assert "torch" in installed
    assert [name for name in installed if STOOD_IN_FOR.match(name)] == []
