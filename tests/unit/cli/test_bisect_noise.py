"""``--confidence`` and ``--repeats``, from the words of the command line to the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.run.prober import SearchRequest
from oomscope.cli.main import run
from tests.unit.report import searches


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
    ],
)
def test_what_cannot_be_sure_is_refused(
    requests: list[CommitRequest], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["bisect", *words]) == 2
    assert said in capsys.readouterr().err


def test_keys_and_corners_are_weighed_as_asked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[SearchRequest] = []

    def search(request: SearchRequest, *_: object, **_means: object) -> BisectResult:
        given.append(request)
        return searches.KEYS

    for name in (
        "change_bisect.bisect_configs",
        "code_vs_config.bisect_code_vs_config",
        "change_bisect.bisect_environment",
    ):
        monkeypatch.setattr(f"oomscope.bisect.{name}", search)
    good, bad, harness = (tmp_path / name for name in ("good.yaml", "bad.yaml", "h.py"))
    for file in (good, bad, harness):
        file.touch()
    weighed = ["--repeats", "3"]
    assert run(["bisect", f"{good}..{bad}", *weighed]) == 0
    assert run(["bisect", "v1..v2", "--axis", "both", "--harness", str(harness), "--config", "c.yaml", *weighed]) == 0
    variables = ["--good-env", "A=1", "--bad-env", "A=2"]
    assert run(["bisect", "v1", "--axis", "environment", "--harness", str(harness), *variables, *weighed]) == 0
    assert [request.noise for request in given] == [Noise(repeats=3)] * 3
