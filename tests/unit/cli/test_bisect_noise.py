"""``--confidence`` and ``--repeats``, from the words of the command line to the request."""

from __future__ import annotations

import pytest

from oomscope.bisect.noise import Noise
from oomscope.bisect.request import CommitRequest
from oomscope.cli.main import run


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        ([], None),
        (["--confidence", "0.99"], Noise(confidence=0.99, repeats=20)),
        (["--repeats", "5"], Noise(confidence=0.95, repeats=5)),
        (["--repeats", "1"], Noise(confidence=0.95, repeats=1)),
    ],
)
def test_what_is_asked_for(requests: list[CommitRequest], options: list[str], noise: Noise | None) -> None:
    assert run(["bisect", *options, "v1..v2", "--config", "a.yaml", "device.limit=1GiB"]) == 0
    assert requests[0].noise == noise


@pytest.mark.parametrize("value", ["0.5", "1", "nan", "inf", "-1", "95%"])
def test_a_confidence_lies_above_a_half_and_below_one(
    requests: list[CommitRequest], capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert run(["bisect", "--confidence", value, "v1..v2", "--config", "a.yaml"]) == 2
    assert "--confidence" in capsys.readouterr().err
    assert not requests


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["v1..v2", "--config", "a.yaml", "--confidence", "0.9", "--repeats", "1"], "--confidence with --repeats 1"),
        (["v1..v2", "--config", "a.yaml", "--axis", "config", "--confidence", "0.9"], "it is about commits"),
        (["v1..v2", "--config", "a.yaml", "--axis", "both", "--harness", "h.py", "--repeats", "3"], "the corners"),
    ],
)
def test_what_cannot_be_sure_is_refused(
    requests: list[CommitRequest], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["bisect", *words]) == 2
    assert said in capsys.readouterr().err
