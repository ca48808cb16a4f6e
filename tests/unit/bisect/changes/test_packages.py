"""Packages as changes: lock files, what a mixture has to install, and pip itself on wheels made here."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from oomscope.bisect.change_bisect import bisect_environment
from oomscope.bisect.changes.packages import Overlays, PackageDeltas
from oomscope.bisect.requests import EnvironmentRequest
from oomscope.bisect.results.result import BisectResult, KeysCulprit
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.errors import TargetError, UsageError
from oomscope.probe.job import BundledTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.repos import Repo
from tests.unit.bisect.worlds import SETTINGS, harness_code, measure

INSTALLED = {"torch": "2.13.0", "numpy": "2.0.0"}
LOW = {"torch": "torch==2.13.0", "numpy": "numpy==1.26.0", "einops": "einops==0.7.0", "same": "same==1"}
HIGH = {
    "torch": "torch==2.12.0",
    "numpy": "numpy==2.0.0",
    "einops": "einops==0.7.0",
    "same": "same==1",
    "new": "new==3",
}


def deltas(tmp_path: Path, **options: object) -> PackageDeltas:
    given = {
        "low": LOW,
        "high": HIGH,
        "installed": INSTALLED.get,
        "overlays": Overlays(tmp_path / "packages"),
        **options,
    }
    return PackageDeltas(**given)  # type: ignore[arg-type]


def test_what_a_mixture_installs_is_what_is_not_there(tmp_path: Path) -> None:
    packages = deltas(tmp_path)
    assert packages.keys == ("package:new", "package:numpy", "package:torch")
    assert packages.requirements(frozenset()) == ("einops==0.7.0", "numpy==1.26.0", "same==1")
    assert packages.requirements(frozenset({0, 1, 2})) == ("einops==0.7.0", "new==3", "same==1", "torch==2.12.0")
    change = packages.change("package:new")
    assert (change.good, change.bad) == (None, "new==3")
    assert change.texts == ("(absent)", "new==3")


def test_what_is_installed_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="good packages: torch is installed here"):
        deltas(tmp_path, low={"numpy": "numpy==1"})


def test_a_marker_does_not_hide_what_is_installed(tmp_path: Path) -> None:
    low = {"numpy": "numpy==1.26.0"}
    high = {"numpy": "numpy==2.0.0 ; python_version >= '3.11'"}
    assert deltas(tmp_path, low=low, high=high).requirements(frozenset({0})) == ()


def test_the_folder_comes_first_on_the_path(tmp_path: Path) -> None:
    packages = deltas(tmp_path, inherited="/theirs")
    experiment = packages.experiment(frozenset(), Experiment(job=ProbeJob(target=BundledTarget(config={}))))
    folder = packages.overlays.folder(packages.requirements(frozenset()))
    assert experiment.job.environment == {"PYTHONPATH": f"{folder}:/theirs"}
    assert experiment.content.packages == folder.name
    command = packages.commands(frozenset(), ("printenv PYTHONPATH",))[-1]
    for theirs, wanted in (("", f"{folder}"), ("/theirs", f"{folder}:/theirs")):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": theirs}
        said = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == wanted


def wheel(folder: Path, name: str, version: str, source: str) -> None:
    """Write a wheel with one module (PyPA, "Binary distribution format")."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text)}\n"
        for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "".join((*rows, f"{info}/RECORD,,\n"))
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip looks."""
    folder = tmp_path / "wheels"
    for name, old, new in (("tinywide", "1", "2000"), ("tinylog", "0", "1")):
        wheel(folder, name, "1.0", f"SIZE = {old}\n")
        wheel(folder, name, "2.0", f"SIZE = {new}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def read_sizes(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    """Bytes: what the modules on the path say."""
    folder = Path((job.environment["PYTHONPATH"] or "").partition(":")[0])
    return measure(sum(int(file.read_text().partition("=")[2]) for file in folder.glob("tiny*.py")))


def search(tmp_path: Path, low: str, high: str) -> BisectResult:
    repo = Repo(tmp_path / "repo")
    repo.commit("one", {"train.py": ""})
    harness = tmp_path / "harness.py"
    harness.touch()
    sides = ({name: f"{name}=={version}" for name in ("tinylog", "tinywide")} for version in (low, high))
    state_dirs = StateDirs(tmp_path / "state")
    request = EnvironmentRequest(
        repo=repo.path,
        revision="HEAD",
        subject=harness_code(harness, SETTINGS),
        layers=(
            PackageDeltas(
                low=next(sides), high=next(sides), overlays=Overlays(state_dirs.packages), left_out=("mine (git)",)
            ),
        ),
        state_dirs=state_dirs,
    )
    return bisect_environment(request, probe=read_sizes, environment={})


def test_the_package_at_fault_of_two_lock_files(tmp_path: Path, index: Path) -> None:
    result = search(tmp_path, "1.0", "2.0")
    assert isinstance(result.culprit, KeysCulprit), result.message
    (key,) = result.culprit.keys
    assert (key.key, key.good, key.bad) == ("package:tinywide", "tinywide==1.0", "tinywide==2.0")
    assert key.delta is not None
    assert key.delta.requested_bytes == 1999
    kept = list((tmp_path / "state" / "packages").iterdir())
    assert len(kept) == len(result.probes), "one folder a mixture, and nothing else is left"
    assert result.notes == ("packages that are not compared: mine (git)",)


def test_a_mixture_that_pip_cannot_make_is_untestable(tmp_path: Path, index: Path) -> None:
    with pytest.raises(TargetError, match="pip install: No matching distribution"):
        Overlays(tmp_path / "packages").install(["tinylog==3.0"])
