"""The plugin in pytest runs of their own, as a user has it: found by its entry point, with warnings as errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").partition("\n## Memory limits in pytest\n")[2]
EXAMPLE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
SHOWN = re.findall(r"^(?:limit_|peak).*", PAGE, re.MULTILINE)

INI = """
[pytest]
addopts = --strict-markers --strict-config -p no:cacheprovider
filterwarnings = error
oomscope_backend = virtual
"""

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.wide = torch.nn.Linear(1024, 4096, device=device)
        self.narrow = torch.nn.Linear(4096, 1024, device=device)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x)))


def train(device):
    model = Net(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(1024, 1024, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

TESTS = """
import subprocess
import sys

import pytest
import torch
from net import Net, train


@pytest.mark.limit_gpu_memory("1 GiB")
@pytest.mark.limit_overhead("100 MiB")
def test_keeps_to_its_limits(gpu_device):
    assert gpu_device.type == "cuda"
    train(gpu_device)


@pytest.mark.limit_gpu_memory("64 MiB")
@pytest.mark.limit_overhead("1 KiB")
def test_holds_and_wastes_too_much(gpu_device):
    train(gpu_device)


@pytest.fixture(scope="class")
def model(gpu_device):
    return Net(gpu_device)


class TestOfAClass:
    pytestmark = [pytest.mark.limit_gpu_memory("1 KiB"), pytest.mark.limit_overhead("100 MiB")]

    @pytest.mark.limit_gpu_memory("32 MiB", of="requested")
    def test_fixtures_count(self, model):
        model(torch.ones(1, 1024, device=model.wide.weight.device))


@pytest.mark.limit_gpu_memory("1 GiB")
def test_measures_nothing(gpu_device):
    pass


@pytest.mark.limit_gpu_memory("1 GiB")
def test_has_no_device():
    pass


@pytest.mark.limit_gpu_memory("300 MiB")
def test_has_a_device_of_its_own():
    torch.empty(400 * 2**20, dtype=torch.uint8, device="cuda")


@pytest.mark.limit_gpu_memory("1 GiB")
def test_is_skipped():
    pytest.skip("needs a GPU")


@pytest.mark.limit_gpu_memory("1 KiB")
def test_fails_by_itself(gpu_device):
    held = torch.ones(2**20, device=gpu_device)
    assert not held.is_cuda, "its own reason"


@pytest.mark.limit_gpu_memory("3 MiB", of="requested")
def test_comes_after_a_failure():
    torch.ones(2**18, device="cuda")


@pytest.mark.limit_gpu_memory("3 MiB", of="requested")
class TestThatHoldsWhatItsSetupMade:
    def setup_method(self):
        self.held = torch.ones(2**19, device="cuda")

    def test_first(self):
        assert not self.held.is_cuda, "its own reason"

    def test_second(self):
        torch.ones(2**18, device="cuda")


KEPT = []


def test_keeps_memory():
    KEPT.append(torch.ones(2**20, device="cuda"))


@pytest.mark.limit_gpu_memory("3 MiB", of="requested")
def test_comes_after_what_was_kept():
    torch.ones(2**18, device="cuda")


def test_starts_a_process_on_the_same_card():
    script = "import torch; print(torch.cuda.mem_get_info())"
    shown = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown == f"{torch.cuda.mem_get_info()}\\n"


def test_is_undisturbed():
    assert torch.arange(3).sum().item() == 3
"""

CONFTEST = """
import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
"""

PROBES = """
import pytest


@pytest.mark.limit_gpu_memory("1 GiB", of="requested")
def test_number(probe):
    assert probe(command="echo bytes 123", metric_regex="bytes ([0-9]+)").peak.requested_bytes == 123


@pytest.mark.limit_gpu_memory("100 B", of="requested")
def test_too_large(probe):
    probe(command="echo bytes 123", metric_regex="bytes ([0-9]+)")


def test_fails(probe):
    probe(command="false", metric_regex="(.*)")


def test_wrong(probe):
    probe(preset="gpt-tinyy")


@pytest.mark.limit_gpu_memory("1 GiB")
def test_probes_nothing(probe):
    pass
"""


WRONG = """
import pytest


@pytest.mark.limit_gpu_memory("24 gigs")
def test_first():
    pass


def test_second():
    pass
"""


def test_the_body_of_a_test_is_measured_in_a_worker_of_xdist(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(net=NET, test_net=TESTS, test_wrong=WRONG, test_memory=EXAMPLE)
    run = pytester.runpytest_subprocess("-rA", "-n", "1")
    run.assert_outcomes(passed=7, failed=10, skipped=1)
    assert len(SHOWN) == 2
    run.stdout.fnmatch_lines(SHOWN)
    text = run.stdout.str()
    for name in ("test_keeps_to_its_limits", "test_comes_after_a_failure", "test_is_undisturbed"):
        assert f"PASSED test_net.py::{name}" in text
    run.stdout.fnmatch_lines_random(
        [
            "limit_gpu_memory: 234.00 MiB held by the allocator on virtual h100-80gb, 170.00 MiB over * of 64.00 MiB",
            "peak: 184.06 MiB requested in backward, at net.py:*forward*",
            "limit_overhead: 53.92 MiB held by the allocator beyond live bytes on virtual h100-80gb, * of 1.00 KiB",
            "limit_gpu_memory: 33.04 MiB requested at once on virtual h100-80gb, * over the limit of 32.00 MiB",
            "limit_gpu_memory: 400.00 MiB held by the allocator on virtual h100-80gb, 100.00 MiB over * of 300.00 MiB",
            "limit_gpu_memory: nothing was measured to hold against 1.00 GiB",
            "put model and data on the device of the fixture gpu_device, or measure with the fixture probe",
            "E*AssertionError: its own reason",
            "limit_gpu_memory: 5.00 MiB requested at once on virtual h100-80gb, * over the limit of 3.00 MiB",
            "allocated before the test: 4.00 MiB, by fixtures, setup methods or earlier tests",
            "the limits of the test cannot be read",
            "test_wrong.py::test_first: marker limit_gpu_memory: *",
        ]
    )
    # Once for each of two tests; where CI is set, pytest repeats every message in its summary, after the test's name.
    assert sum(line.startswith("limit_gpu_memory: nothing was measured") for line in run.outlines) == 2
    assert "During handling" not in text


def test_probes_are_measured(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(PROBES)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # which the run inside takes away
    environment = dict(os.environ)
    run = pytester.runpytest_inprocess()
    assert os.environ == environment
    run.assert_outcomes(passed=1, failed=4)
    run.stdout.fnmatch_lines_random(
        [
            "limit_gpu_memory: 123 B requested at once (command), 23 B over the limit of 100 B",
            "probe: false* was not measured (exit)",
            "probe: nothing was measured",
            "*gpt-tinyy*did you mean gpt-tiny?",
            "limit_gpu_memory: nothing was measured to hold against 1.00 GiB",
        ]
    )
    assert "During handling" not in run.stdout.str()


def test_a_wrong_marker_is_one_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    path = pytester.makepyfile(WRONG)
    run = pytester.runpytest_inprocess()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    complaint = "marker limit_gpu_memory: '24 gigs' is not a size; give a size such as 80GiB, 512MiB or 1048576"
    assert [line for line in run.stderr.lines if line] == [f"ERROR: {path.name}::test_first: {complaint}"]
    pytester.runpytest_inprocess("-k", "second").assert_outcomes(passed=1, deselected=1)


def test_a_virtual_card_that_cannot_be_loaded_is_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini(INI)
    torch = pytester.mkpydir("torch")
    (torch / "version.py").write_text("__version__ = '2.15.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    run = pytester.runpytest_subprocess()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["ERROR: oomscope_backend = virtual: *torch 2.15.0 is built without CUDA; install *"])


def test_an_unknown_backend_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\noomscope_backend = gpu\n")
    run = pytester.runpytest_inprocess()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    assert "oomscope_backend = gpu: no such backend; give one of auto, virtual, cuda" in run.stderr.str()


OF_A_T4 = """
import pytest
import torch


def test_without_a_limit():
    assert torch.cuda.get_device_name() == "Tesla T4"


@pytest.mark.limit_gpu_memory("1 GiB")
def test_beyond_its_limit():
    torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")


@pytest.mark.limit_gpu_memory("30 GiB")
def test_beyond_the_card():
    ones = torch.ones(2**30, device="cuda")
    [ones + 1 for _ in range(4)]
"""


def test_bodies_of_tests_run_on_the_card_that_the_ini_file_names(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI + "oomscope_gpu = t4\n")
    pytester.makepyfile(OF_A_T4)
    run = pytester.runpytest_subprocess()
    run.assert_outcomes(passed=1, failed=2)
    assert "recording/values" not in run.stdout.str(), "the traceback ends in the test"
    run.stdout.fnmatch_lines(
        ["limit_gpu_memory: 2.00 GiB held by the allocator on virtual t4*", "E *OutOfMemoryError: *"]
    )


def test_an_unknown_card_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\noomscope_gpu = a1000\n")
    run = pytester.runpytest_inprocess()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["ERROR: oomscope_gpu = a1000: no card is called 'a1000'; did you mean a100-*"])
    assert "--limit" not in run.stderr.str()


def test_a_run_without_markers_imports_nothing_heavy() -> None:
    script = (
        "import sys, pytest, oomscope.pytest_plugin, oomscope.pytest_plugin.limits\n"
        "print(sorted({'torch', 'numpy', 'numba', 'pandas', 'click', 'rich', 'pydantic'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
