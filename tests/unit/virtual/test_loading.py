"""The card is found by what torch wants, wherever NVIDIA's libraries are, and says in one line why it cannot load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from oomscope.errors import ExitCode, MachineUnfitError
from oomscope.virtual import installed_torch, loading
from oomscope.virtual.installed_torch import InstalledTorch, find_torch, requirements_of
from tests.unit.virtual.libraries import needs_compiler, write_torch, write_wheel

SMALL = ("libcuda.so.1", "libcudart.so.13")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process without card and torch, whose card would be in the folder returned."""
    folder = tmp_path / "lib"
    monkeypatch.setattr(loading, "_loaded", None)
    monkeypatch.setattr(loading, "LIBRARIES", folder)
    monkeypatch.setattr(installed_torch, "find_torch", lambda: InstalledTorch(tmp_path / "torch", "2.15.0", "13.2"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return folder


def refusal() -> str:
    with pytest.raises(MachineUnfitError) as raised:
        loading.load()
    assert raised.value.exit_code is ExitCode.MACHINE_UNFIT
    assert not loading.is_loaded()
    return str(raised.value)


def test_another_system_is_referred_to_a_container(unloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refusal().startswith("virtual card: needs Linux, and this is darwin; use a container: docker run")


def test_a_library_that_was_not_built_is_reported_as_missing(unloaded: Path) -> None:
    assert "virtual card: liboomscope_card.so is missing; reinstall oomscope's wheel" in refusal()
    (unloaded.parent / "csrc").mkdir()
    assert "virtual card: liboomscope_card.so is missing; compile it:" in refusal()


@needs_compiler
class TestTorch:
    """What of the installed torch stands in the way."""

    @pytest.fixture(autouse=True)
    def _card(self, unloaded: Path, small_card: Path) -> None: ...

    def test_no_torch_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installed_torch, "find_torch", lambda: None)
        assert refusal() == "torch is not installed; pip install 'oomscope[probe]'"

    def test_torch_is_built_without_cuda(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        write_torch(tmp_path / "site", cuda=None)
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.setattr(installed_torch, "find_torch", find_torch)
        assert refusal().startswith(
            f"{tmp_path / 'site' / 'torch'}: torch 2.15.0 is built without CUDA; install PyTorch's CUDA build"
        )

    def test_torch_was_imported_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        assert "torch was imported before the virtual card was loaded" in refusal()

    def test_torch_needs_what_the_card_lacks(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        write_torch(tmp_path / "site", wants=("cudaMalloc", *(f"cudaNew{index}" for index in range(7))))
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.setattr(installed_torch, "find_torch", find_torch)
        said = "needs cudaNew0, cudaNew1, cudaNew2, cudaNew3, cudaNew4 and 2 more, which the virtual card lacks"
        assert f"torch 2.15.0 (CUDA 13.2) {said}" in refusal()


@needs_compiler
def test_wants_are_sonames_and_symbols_and_only_nvidia_s(tmp_path: Path) -> None:
    folder = write_torch(tmp_path, wants=("cudaMalloc", "cublasNew")).parent.parent
    wants = requirements_of(InstalledTorch(folder, "2.15.0", "13.2"))
    assert wants.sonames == {"libcudart.so.13"}
    assert wants.symbols == {"cudaMalloc", "cublasNew"}
    assert wants.unmet({"libcudart.so.12"}, {"cudaMalloc"}) == ("libcudart.so.13", "cublasNew")


@needs_compiler
class TestImporting:
    """The card is loaded for an import of torch where NVIDIA's libraries are missing, and only there."""

    @pytest.fixture(autouse=True)
    def _torch(self, unloaded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.loads: list[str] = []
        monkeypatch.setattr(installed_torch, "find_torch", find_torch)
        monkeypatch.setattr(loading, "has_gpu", lambda: False)
        monkeypatch.setattr(loading, "load", lambda: self.loads.append("load"))
        monkeypatch.setattr(installed_torch, "_known_to_the_system", frozenset)
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
        monkeypatch.syspath_prepend(tmp_path / "site")

    def test_nvidias_libraries_are_missing(self, tmp_path: Path) -> None:
        write_torch(tmp_path / "site")
        loading.load_where_needed()
        assert self.loads == ["load"]

    def test_nvidias_libraries_are_installed_beside_torch(self, tmp_path: Path) -> None:
        write_torch(tmp_path / "site")
        write_wheel(tmp_path / "site" / "nvidia" / "cu13" / "lib", ("cudaMalloc",))
        loading.load_where_needed()
        assert not self.loads

    def test_nvidias_libraries_are_on_the_library_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_torch(tmp_path / "site")
        write_wheel(tmp_path / "toolkit", ("cudaMalloc",))
        monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'toolkit'}")
        loading.load_where_needed()
        assert not self.loads

    def test_the_system_has_nvidias_libraries(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_torch(tmp_path / "site")
        monkeypatch.setattr(installed_torch, "_known_to_the_system", lambda: frozenset({"libcudart.so.13"}))
        loading.load_where_needed()
        assert not self.loads

    def test_there_is_a_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_torch(tmp_path / "site")
        monkeypatch.setattr(loading, "has_gpu", lambda: True)
        loading.load_where_needed()
        assert not self.loads

    def test_torch_needs_no_library_of_nvidias(self, tmp_path: Path) -> None:
        write_torch(tmp_path / "site", cuda=None)
        loading.load_where_needed()
        assert not self.loads


def test_a_gpu_is_recognised_by_its_device_files(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not loading.has_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert loading.has_gpu(tmp_path)


@needs_compiler
def test_torch_calls_the_card_although_nvidia_s_libraries_are_mapped_too(small_card: Path, tmp_path: Path) -> None:
    torch = write_torch(tmp_path / "site")
    wheel = write_wheel(tmp_path / "wheel", ("cudaMalloc",))
    program = f"""
import ctypes, os
from pathlib import Path
from oomscope.virtual import installed_torch, loading
loading.load_libraries(Path({str(small_card)!r}))
wheel = ctypes.CDLL({str(wheel)!r}, mode=ctypes.RTLD_GLOBAL)
assert wheel.cudaMalloc() == 7, "the wheel is not mapped"
print(ctypes.CDLL({str(torch)!r}, mode=os.RTLD_NOW).use(), ctypes.CDLL("libcudart.so.13").cudaMalloc())
"""
    assert run(program) == "42 43\n"


@needs_compiler
@pytest.mark.parametrize(("cuda", "runtime"), [("12.8", "libcudart.so.12"), ("13.2", "libcudart.so.13")])
def test_a_process_has_the_runtime_of_one_cuda(small_card: Path, cuda: str, runtime: str) -> None:
    program = f"""
import ctypes, os
from pathlib import Path
from oomscope.virtual import installed_torch, loading
from oomscope.virtual.sonames import sonames_for
loading.load_libraries(Path({str(small_card)!r}), sonames_for({cuda!r}))
for soname in "libcudart.so.12", "libcudart.so.13":
    try:
        ctypes.CDLL(soname, mode=os.RTLD_NOLOAD)
        print(soname)
    except OSError:
        pass
"""
    assert run(program) == f"{runtime}\n"


@needs_compiler
def test_a_library_of_nvidia_s_that_was_there_first_is_refused(small_card: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "wheel", ("cudaMalloc",))
    program = f"""
import ctypes
from pathlib import Path
from oomscope.virtual import installed_torch, loading
ctypes.CDLL({str(wheel)!r})
try:
    loading.load_libraries(Path({str(small_card)!r}))
except Exception as error:
    print(error)
"""
    expected = "virtual card: another libcudart.so.13 is in the process already; load the card first\n"
    assert run(program) == expected


@needs_compiler
def test_a_damaged_library_is_one_line(small_card: Path, tmp_path: Path) -> None:
    (small_card / "libcuda.so.1").write_bytes(b"no library")
    program = f"""
from pathlib import Path
from oomscope.virtual import installed_torch, loading
try:
    loading.load_libraries(Path({str(small_card)!r}))
except Exception as error:
    print(error)
"""
    said = run(program)
    assert said.count("\n") == 1
    assert "libcuda.so.1: file too short" in said
