"""Tests whose memory cannot be measured, and fixtures of a project that have the names of the plugin's."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo  # torch cannot import it twice, and a run inside this process forgets what it imported

from oomscope.capture import history
from oomscope.errors import MachineUnfitError
from oomscope.probe.recording import settings as sessions
from oomscope.probe.recording.session import Session
from oomscope.probe.recording.settings import SessionSettings

pytest_plugins = ("pytester",)

INI = "[pytest]\nfilterwarnings = error\naddopts = -p no:cacheprovider -p no:xdist --strict-markers\n"

BODY = """
import pytest
import torch


@pytest.mark.limit_gpu_memory("30 MiB")
@pytest.mark.parametrize("mebibytes", [10, 40])
def test_of_its_own_device(mebibytes):
    torch.empty(mebibytes * 2**20, dtype=torch.uint8, device="cuda")


def test_without_a_limit():
    pass
"""


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "sees_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(history, "is_recording", lambda: False)


@pytest.mark.parametrize("reason", ["recording", "card"])
def test_what_cannot_be_measured_fails_in_two_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def unfit(settings: SessionSettings, backend: str) -> Session:
        raise MachineUnfitError("the card is taken", remedy="use another one")

    if reason == "recording":
        monkeypatch.setattr(history, "is_recording", lambda: True)
    else:
        monkeypatch.setattr(sessions, "open_session", unfit)
    pytester.makeini(INI)
    pytester.makepyfile(BODY)
    run = pytester.runpytest_inprocess("-k", "10 or without")
    run.assert_outcomes(passed=1, failed=1, deselected=1)
    said = {"recording": "the allocator's history is being recorded already; *", "card": "the card is taken; use *"}
    run.stdout.fnmatch_lines(["the memory of the test cannot be measured", said[reason]])
    assert "During handling" not in run.stdout.str()


FOREIGN = """
import pytest


@pytest.fixture
def probe():
    return "a probe of the project"


@pytest.fixture(name="gpu_device")
def their_device():
    return 0


def test_a_fixture_of_their_own(gpu_device, probe):
    assert (gpu_device, probe) == (0, "a probe of the project")


@pytest.mark.parametrize("gpu_device", [0, 1])
def test_an_argument_of_their_own(gpu_device):
    assert gpu_device in (0, 1)


@pytest.mark.limit_gpu_memory("30 MiB")
def test_a_limit_beside_them(gpu_device, probe):
    pass
"""


def test_fixtures_of_these_names_that_are_others_change_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "is_recording", lambda: True)  # tells that one is to be measured, without a session
    pytester.makeini(INI)
    pytester.makepyfile(FOREIGN)
    run = pytester.runpytest_inprocess()
    run.assert_outcomes(passed=3, failed=1)
    run.stdout.fnmatch_lines(["*_ test_a_limit_beside_them _*", "the memory of the test cannot be measured"])


WITHOUT_A_GPU = """
import pytest


def test_of_the_device(gpu_device):
    pass


@pytest.fixture
def needs_a_gpu():
    pytest.skip("needs a GPU")


def test_that_a_fixture_skips(needs_a_gpu, gpu_device):
    pass
"""


def test_without_a_gpu_a_test_that_nothing_skips_fails_in_two_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "sees_gpu", lambda: False)
    pytester.makeini(INI + "oomscope_backend = cuda\n")
    pytester.makepyfile(WITHOUT_A_GPU)
    run = pytester.runpytest_inprocess()
    run.assert_outcomes(failed=1, skipped=1)
    run.stdout.fnmatch_lines(["the memory of the test cannot be measured", "torch finds no CUDA device; run *virtual*"])


@pytest.mark.parametrize("is_probed", [False, True])
def test_in_a_probe_of_pytest_the_card_is_that_of_the_probe(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, is_probed: bool
) -> None:
    monkeypatch.setenv("OOMSCOPE_CARD", "of the probe")
    if is_probed:
        monkeypatch.setenv("OOMSCOPE_PROGRAM", "{}")
    pytester.makeini(INI + "oomscope_backend = virtual\n")
    pytester.makepyfile(f"import os\ndef test(): assert (os.environ['OOMSCOPE_CARD'] == 'of the probe') == {is_probed}")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
