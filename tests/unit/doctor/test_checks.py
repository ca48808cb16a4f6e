"""git, directories, host and packages, each as it can be found on some machine."""

from __future__ import annotations

import os
import shlex
import shutil
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from oomscope.doctor import examine
from oomscope.doctor import machine_checks as places
from oomscope.doctor import package_checks as packages
from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.doctor.examine import _looked
from oomscope.doctor.machine_checks import free_memory, host_check, place_checks, size_of
from oomscope.doctor.package_checks import git_checks
from oomscope.errors import ExitCode
from oomscope.units import GiB, KiB

# git


DISTRUSTS = """case $1 in
    --version) echo git version 2.39.5;;
    *) echo "fatal: detected dubious ownership in repository" >&2; exit 128
esac"""


def put_git(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str | None) -> None:
    """Let ``script`` be all that PATH has, under the name of git."""
    monkeypatch.setenv("PATH", str(folder))
    if script is not None:
        (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "git").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "states", "found"),
    [
        ("echo git version 2.39.5", [State.OK], "git 2.39.5"),
        ("echo git version 2.53.0.windows.1", [State.OK], "git 2.53.0"),
        ("echo git version 2.30.2", [State.MISSING], "git 2.30.2"),
        (None, [State.MISSING], "there is no git on PATH"),
        ("echo xcrun: error >&2; exit 1", [State.MISSING], "git does not run: xcrun: error"),
        (DISTRUSTS, [State.OK, State.NOTE], "git 2.39.5"),
    ],
)
def test_git(monkeypatch, tmp_path: Path, script: str | None, states: list[State], found: str) -> None:
    put_git(monkeypatch, tmp_path, script)
    checks = list(git_checks(tmp_path))
    assert [check.state for check in checks] == states
    assert checks[0].found == found
    assert all(check.disables and check.remedy for check in checks if check.state is not State.OK)


# directories


def by_part(tmp_path: Path, **environment: str) -> dict[str, Check]:
    given = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state"), **environment}
    return {check.part: check for check in place_checks(given)}


def test_looking_at_directories_makes_none(tmp_path: Path) -> None:
    found = by_part(tmp_path)
    assert [check.state for check in found.values()] == [State.OK] * 3
    assert "not made yet" in found["cache"].found
    assert list(tmp_path.iterdir()) == []


def test_what_a_cache_holds(tmp_path: Path) -> None:
    (tmp_path / "cache" / "oomscope" / "results").mkdir(parents=True)
    (tmp_path / "cache" / "oomscope" / "results" / "one.json").write_bytes(bytes(2048))
    check = by_part(tmp_path)["cache"]
    assert check.values["size_bytes"] == 2048
    assert "2.00 KiB, " in check.found


def test_a_large_directory_is_counted_in_part(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes(10))
    assert (size_of(tmp_path, most=3).bytes, size_of(tmp_path, most=3).is_cut) == (30, True)
    assert (size_of(tmp_path, most=5).bytes, size_of(tmp_path, most=5).is_cut) == (50, False)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_directory_that_may_not_be_written_to(monkeypatch, tmp_path: Path, is_file: bool) -> None:
    if is_file:
        (tmp_path / "cache").touch()
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    check = by_part(tmp_path)["cache"]
    assert check.state is State.MISSING
    assert check.remedy == "set XDG_CACHE_HOME to a directory that may be written to"


def test_no_home(monkeypatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    first, *_ = place_checks({})
    assert (first.state, first.found) == (State.MISSING, "there is no home directory")


def test_a_cache_where_no_disk_is(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places.shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(0, 0, 0))
    check = by_part(tmp_path)["cache"]
    assert check.state is State.MISSING
    assert check.found.endswith(f"{tmp_path} belongs to no disk, so that no file can be made there")
    assert check.remedy == "set XDG_CACHE_HOME to a directory that may be written to"


def test_a_full_disk(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "LITTLE", 2**80)
    assert {check.state for check in by_part(tmp_path).values()} == {State.NOTE}


def test_no_place_for_temporary_files(monkeypatch, tmp_path: Path) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(places.tempfile, "gettempdir", none)
    assert by_part(tmp_path)["temporary files"].state is State.FAILS


# host


def test_free_memory_is_the_least_of_host_and_container(tmp_path: Path) -> None:
    meminfo, limit, used = (tmp_path / name for name in ("meminfo", "limit", "used"))
    assert free_memory(meminfo, limit, used) is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:  5000 kB\n")
    assert free_memory(meminfo, limit, used) == 5000 * KiB
    limit.write_text("max\n")
    used.write_text("1000\n")
    assert free_memory(meminfo, limit, used) == 5000 * KiB
    limit.write_text("4000\n")
    assert free_memory(meminfo, limit, used) == 3000
    assert host_check(meminfo, limit, used).state is State.NOTE
    meminfo.write_text(f"MemAvailable: {8 * GiB // KiB} kB\n")
    assert host_check(meminfo, tmp_path / "none", used).state is State.OK


# packages


def test_needed_packages_are_those_of_the_metadata() -> None:
    needed = [name.lower() for name in packages.needed_packages()]
    assert {"torch", "numpy", "gitpython"} <= set(needed)
    assert not {"matplotlib", "submitit", "pytest"} & set(needed)


def test_absent_packages(monkeypatch) -> None:
    def version(name: str) -> str:
        if name in {"numba", "matplotlib"}:
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(packages.metadata, "version", version)
    found = {check.part: check for check in packages.package_checks()}
    assert found["oomscope"].state is State.FAILS
    assert "not installed: numba" in found["oomscope"].found
    assert found["matplotlib"].state is State.MISSING
    assert found["matplotlib"].remedy == "pip install 'oomscope[plots]'"
    assert found["submitit"].state is State.OK


@pytest.mark.parametrize(("sbatch", "states"), [(None, [State.MISSING]), ("/usr/bin/sbatch", [])])
def test_slurm_is_asked_for_where_submitit_is(monkeypatch, sbatch: str | None, states: list[State]) -> None:
    monkeypatch.setattr(packages, "version_of", lambda name: "1.0")
    monkeypatch.setattr(packages.shutil, "which", lambda name: sbatch)
    assert [check.state for check in packages.package_checks() if check.part == "Slurm"] == states


# together


def test_a_check_that_breaks_is_a_row() -> None:
    def checks():
        yield Check(part="git", state=State.OK, found="git 2")
        raise PermissionError(13, "Permission denied")

    first, second = _looked("git", checks)
    assert first.found == "git 2"
    assert second.found.startswith("cannot be checked (PermissionError: ")
    assert second.state is State.MISSING


def test_without_a_look_at_torch_no_machine_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ValueError("version")

    monkeypatch.setattr(examine, "TorchImport", lambda: nullcontext(SimpleNamespace(outcome=broken)))
    diagnosis = examine.examine()
    assert (diagnosis.exit_code, diagnosis.backends) == (ExitCode.MACHINE_UNFIT, ())


@pytest.mark.parametrize("names", [True, False], ids=["git names it", "git does not"])
def test_the_remedy_for_a_repository_of_another_user_trusts_that_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: bool
) -> None:
    top = tmp_path / "it's theirs"
    top.mkdir()
    at = f" at '{top}'" if names else ""
    said = DISTRUSTS.replace("in repository", f"in repository{at}")
    put_git(monkeypatch, tmp_path, said)
    monkeypatch.chdir(top)
    last = list(git_checks(Path()))[-1]
    assert last.remedy == f"git config --global --add safe.directory {shlex.quote(str(top))}"


@pytest.mark.parametrize(
    ("states", "code", "backends"),
    [
        ({"torch": State.OK, "virtual card": State.OK}, ExitCode.OK, ("virtual",)),
        ({"torch": State.OK}, ExitCode.MACHINE_UNFIT, ()),
        ({"torch": State.OK, "CUDA": State.OK, "NVML": State.OK}, ExitCode.OK, ("cuda",)),
        ({"torch": State.OK, "CUDA": State.OK, "NVML": State.MISSING}, ExitCode.MACHINE_UNFIT, ()),
        ({"torch": State.OK, "virtual card": State.OK, "git": State.MISSING}, ExitCode.OK, ("virtual",)),
        ({"torch": State.FAILS, "git": State.MISSING}, ExitCode.MACHINE_UNFIT, ()),
    ],
)
def test_what_the_machine_is_fit_for(states: dict[str, State], code: ExitCode, backends: tuple[str, ...]) -> None:
    diagnosis = Diagnosis(tuple(Check(part=part, state=state, found="") for part, state in states.items()))
    assert (diagnosis.exit_code, diagnosis.backends) == (code, backends)
