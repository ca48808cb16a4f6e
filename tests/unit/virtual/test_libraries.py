"""PyTorch's operations run on the stand-ins for NVIDIA's libraries: no error, the right shape, sane sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oomscope.virtual import stubs
from oomscope.virtual.elf import read_elf
from oomscope.virtual.loading import LIBRARIES
from oomscope.virtual.sonames import CARD
from tests.made_once import made_once
from tests.unit.virtual.on_card import on_card
from tests.unit.virtual.operations import OPERATIONS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each operation said, all run in one process with the card."""

    def run(folder: Path) -> None:
        command = [sys.executable, "-m", "tests.unit.virtual.library_program"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert not done.returncode, done.stderr[-4000:]
        (folder / "said").write_text(done.stdout)

    text = (made_once(tmp_path_factory, "operations", run) / "said").read_text()
    said = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in said}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_runs(name: str, results: dict[str, dict[str, Any]]) -> None:
    said, operation = results[name], OPERATIONS[name]
    assert "error" not in said, said["error"]
    assert tuple(said["shape"]) == operation.shape
    assert said["peak_bytes"] <= operation.peak_mib << 20
    assert set(said["unsupported"]) <= set(operation.unsupported)
    assert operation.unknown_reads in {None, said["unknown_reads"]}


def test_only_names_of_interfaces_leave_the_library() -> None:
    known = {function.name for path in stubs.NAMES.glob("*.txt") for function in stubs.read_table(path)}
    exported = read_elf(LIBRARIES / CARD, exports=True).exported
    assert known <= exported
    assert {name for name in exported - known if not name.startswith("oomscope_card_")} == set()


def test_calls_of_packages_that_torch_itself_never_makes_are_answered() -> None:
    said = on_card(
        """
        count, tensor = c_int(), ctypes.c_void_p()
        call("nvrtcGetNumSupportedArchs", byref(count))
        architectures = (c_int * count.value)()
        call("nvrtcGetSupportedArchs", architectures)  # TransformerEngine takes the last
        call("cudnnCreateTensorDescriptor", byref(tensor))
        call("cudnnSetTensor4dDescriptor", tensor, 0, 0, 8, 4, 2, 2)  # batch normalisation of apex
        say([list(architectures)[-1], *state().unsupported])
        """
    )
    assert said == [121]
