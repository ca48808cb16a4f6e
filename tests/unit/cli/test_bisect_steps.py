"""``--steps`` and its kin, from the words of the command line to the request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.sections import EVERYWHERE, StepsWanted
from oomscope.bisect.search.steps import Threshold
from oomscope.cli.main import run
from oomscope.units import MiB
from tests.unit.report import searches


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], None),
        (["--steps"], StepsWanted()),
        (["--min-step", "1MiB"], StepsWanted(threshold=Threshold(requested_bytes=MiB, overhead_bytes=MiB))),
        (["--steps", "--min-step", "0"], StepsWanted(threshold=Threshold.of(0))),
        (["--exhaustive"], StepsWanted(looks=EVERYWHERE)),
        (["--exhaustive=20", "--steps"], StepsWanted(looks=20)),
    ],
)
def test_what_is_asked_for(requests: list[CommitRequest], options: list[str], wanted: StepsWanted | None) -> None:
    assert run(["bisect", *options, "v1..v2", "--config", "a.yaml", "device.limit=1GiB"]) == 0
    assert requests[0].steps == wanted


@pytest.mark.parametrize(("options", "jobs"), [([], 1), (["--jobs", "3"], 3), (["--jobs", "auto"], 5)])
def test_jobs_are_a_number_or_the_cores(
    requests: list[CommitRequest], monkeypatch: pytest.MonkeyPatch, options: list[str], jobs: int
) -> None:
    monkeypatch.setattr("oomscope.cli.options.types.cores", lambda: 5)
    assert run(["bisect", *options, "v1..v2", "--config", "a.yaml"]) == 0
    assert requests[0].jobs == jobs


@pytest.mark.parametrize("ends", ["..v2", "v2"])
def test_a_good_end_is_looked_for(requests: list[CommitRequest], ends: str) -> None:
    assert run(["bisect", ends, "--find-good", "--config", "a.yaml"]) == 0
    assert (requests[0].range.is_open, requests[0].range.bad) == (True, "v2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--exhaustive=0"], "'0' is not a whole number from 1"),
        (["--exhaustive=some"], "'some' is not a whole number from 1"),
        (["--min-step", "much"], "much"),
        (["--steps", "--axis", "environment", "--good-env", "A=1"], "--steps with --axis environment"),
        (["--find-good"], "names a good end"),
        (["--jobs", "0"], "'0' is not a whole number from 1 to 64, nor auto"),
        (["--jobs", "many"], "'many' is not a whole number from 1 to 64, nor auto"),
        (["--find-good", "--axis", "config"], "--find-good with --axis config"),
        (["--steps", "--axis", "config"], "--steps with two configuration files"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    requests: list[CommitRequest], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bisect", "v1..v1", "--config", "a.yaml", *options]) == 2
    assert said in capsys.readouterr().err
    assert requests == []


def test_an_open_range_says_how_it_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", "..v2", "--config", "a.yaml"]) == 2
    assert "or add --find-good" in capsys.readouterr().err


def test_the_document_has_the_waterfall(requests: list[CommitRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", "v1..v2", "--config", "a.yaml", "--steps", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["waterfall"]["threshold"] == {"requested_bytes": 0, "overhead_bytes": 20 * MiB}
    assert document["waterfall"]["unseen"][0]["commits"] == 5
    assert document["heaviest"] == searches.MIDDLE
    assert document["steps"][0]["delta_overhead_bytes"] == -(1 << 30)
    assert document["steps"][0]["dominant"]["category"] == "temporary"


def test_the_steps_are_a_csv_file(requests: list[CommitRequest], tmp_path: Path) -> None:
    assert run(["bisect", "v1..v2", "--config", "a.yaml", "--steps", "--csv", str(tmp_path / "tables")]) == 0
    header, first, *_ = (tmp_path / "tables" / "steps.csv").read_text().splitlines()
    assert {"delta_overhead_bytes", "since_good_reserved_bytes", "dominant_file"} <= set(header.split(","))
    assert first.startswith(searches.MIDDLE)
