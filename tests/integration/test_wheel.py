"""The wheel carries the card compiled, for any Linux that it runs on; the sdist carries its sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from oomscope.virtual import build
from oomscope.virtual.platform_tag import platform_tag
from oomscope.virtual.sonames import CARD, SONAMES, file_of

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only a wheel for Linux has a card"),
    pytest.mark.skipif(not build.has_compiler(), reason="no compiler"),
]


def built(kind: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Have hatchling build a wheel or an sdist as pip has it built."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_has_the_libraries_and_no_sources(tmp_path: Path) -> None:
    done = built("wheel", tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-py3-none-{platform_tag(build.LIBRARIES / CARD)}.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"oomscope/virtual/lib/{file}" for file in (CARD, *map(file_of, SONAMES))} <= names
    assert not [name for name in names if "csrc" in name or "virtual/build.py" in name or "/." in name]


def test_the_sdist_has_the_sources_and_no_libraries(tmp_path: Path) -> None:
    done = built("sdist", tmp_path)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"hatch_build.py", "requirements.lock", "oomscope/virtual/csrc/card.h", "oomscope/virtual/build.py"} <= names
    assert not [name for name in names if name.startswith("oomscope/virtual/lib/")]


def test_without_a_compiler_the_build_ends_with_one_line(tmp_path: Path) -> None:
    sitecustomize = "import importlib.util as u; find = u.find_spec\n"
    sitecustomize += "u.find_spec = lambda name, *rest: None if name == 'ziglang' else find(name, *rest)\n"
    (tmp_path / "sitecustomize.py").write_text(sitecustomize)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path), "OOMSCOPE_CARD_TARGET": "aarch64-linux-gnu.2.28"}
    done = built("wheel", tmp_path / "dist", **environment)
    assert done.returncode == 1
    assert done.stderr == "oomscope: virtual card: no compiler for aarch64-linux-gnu.2.28; pip install ziglang\n"


def test_an_installed_wheel_probes_without_a_compiler(tmp_path: Path) -> None:
    assert built("wheel", tmp_path / "dist").returncode == 0
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    installed, no_tools = tmp_path / "installed", tmp_path / "bin"
    no_tools.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(pip, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    environment = {**os.environ, "PYTHONPATH": str(installed), "PATH": str(no_tools)}
    probe = [sys.executable, "-P", "-m", "oomscope", "probe", "--preset", "gpt-tiny", "--backend", "virtual", "--json"]
    done = subprocess.run(probe, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["outcome"] == "fits"
    where = [sys.executable, "-P", "-c", "import oomscope.virtual.loading as loading; print(loading.LIBRARIES)"]
    libraries = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(libraries.stdout.strip()).is_relative_to(installed)
