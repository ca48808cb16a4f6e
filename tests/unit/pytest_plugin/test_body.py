"""The body of a test on CUDA, which here is a simulated session under that name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch._dynamo  # torch cannot import it twice, and a run inside this process forgets what it imported

import oomscope.probe.analyse
import oomscope.probe.sim.session  # noqa: F401 - a run inside this process must not be the first to import them
from oomscope.capture import history
from oomscope.errors import MachineUnfitError
from oomscope.probe import sessions
from oomscope.probe.session import Session, SessionSettings
from oomscope.probe.sim import SimSession
from oomscope.virtual.cards import find_card

pytest_plugins = ("pytester",)

INI = "[pytest]\nfilterwarnings = error\naddopts = -p no:cacheprovider -p no:xdist --strict-markers\n"

BODY = """
import pytest
import torch


@pytest.mark.limit_gpu_memory("30 MiB")
@pytest.mark.parametrize("mebibytes", [10, 40])
def test_of_its_own_device(mebibytes):
    torch.empty(mebibytes * 2**20, dtype=torch.uint8, device="sim")


def test_without_a_limit():
    pass
"""


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let a simulated session stand for CUDA; returns what it was told when it was opened."""
    told: list[bool] = []

    def opened(settings: SessionSettings, backend: str) -> Session:
        assert (backend, settings.gpu, settings.unlimited) == ("cuda", None, False)
        return SimSession(replace(settings, gpu=find_card("h100-80gb"), non_torch_bytes=0))

    monkeypatch.setattr(sessions, "sees_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append(True))
    monkeypatch.setattr(history, "is_recording", lambda: False)
    monkeypatch.setattr(sessions, "open_session", opened)
    return told


def test_a_marked_test_is_measured_on_cuda_without_a_fixture(pytester: pytest.Pytester, emptied: list[bool]) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(BODY)
    run = pytester.runpytest_inprocess()
    run.assert_outcomes(passed=2, failed=1)
    run.stdout.fnmatch_lines(
        [
            "limit_gpu_memory: 40.00 MiB held by the allocator on cuda h100-80gb, 10.00 MiB over the limit *",
            "peak: 40.00 MiB requested in forward, at *test_of_its_own_device",
        ]
    )
    assert emptied == [True, True], "the cache is emptied before each test that is measured"


@pytest.mark.parametrize("reason", ["recording", "card"])
def test_what_cannot_be_measured_fails_in_two_lines(
    pytester: pytest.Pytester, emptied: list[bool], monkeypatch: pytest.MonkeyPatch, reason: str
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
    pytester: pytest.Pytester, emptied: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "is_recording", lambda: True)  # tells that one is to be measured, without a session
    pytester.makeini(INI)
    pytester.makepyfile(FOREIGN)
    run = pytester.runpytest_inprocess()
    run.assert_outcomes(passed=3, failed=1)
    run.stdout.fnmatch_lines(["*_ test_a_limit_beside_them _*", "the memory of the test cannot be measured"])
