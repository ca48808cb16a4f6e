"""Commands that a night says to go on with: whole, for the folder of their reader, and no word is two for a shell."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.gate.suite.identity import Home
from oomscope.report.gate_commands import Commands, with_variables
from tests.unit.gate.nights import night

NIGHT = replace(
    night(1),
    suite="/builds/1/ci gate/memory.yaml",
    home=Home(path="ci gate/memory.yaml"),
    baseline="/builds/1/ci gate/memory.baseline.yaml",
)


def test_paths_count_from_the_root_of_a_checkout() -> None:
    commands = Commands.of(NIGHT)
    assert commands.run(["it's"]) == """oomscope gate run 'ci gate/memory.yaml' --case 'it'"'"'s'"""
    assert commands.update(["a"]) == "oomscope gate update 'ci gate/memory.yaml' --case a"
    accepted = commands.update(accept=["a", "b c"])
    assert accepted == "oomscope gate update 'ci gate/memory.yaml' --case a --case 'b c' --accept a --accept 'b c'"
    assert commands.calibrate(["a"]) == "oomscope gate calibrate 'ci gate/memory.yaml' --case a --write"


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        ("memory.baseline.yaml", ""),
        ("/builds/1/ci gate/other.yaml", " --baseline 'ci gate/other.yaml'"),
        ("/shared/memory.baseline.yaml", " --baseline /shared/memory.baseline.yaml"),
    ],
)
def test_a_baseline_that_lies_elsewhere_is_named(baseline: str, said: str) -> None:
    assert Commands.of(replace(NIGHT, baseline=baseline)).run([]) == f"oomscope gate run 'ci gate/memory.yaml'{said}"


def test_paths_are_whole_where_the_reader_is_elsewhere() -> None:
    anywhere = "oomscope gate run '/builds/1/ci gate/memory.yaml'"
    assert Commands.of(replace(NIGHT, home=None)).run([]) == anywhere
    assert Commands.seen_from(NIGHT, Path("/home/ada")).run([]) == anywhere
    assert Commands.seen_from(NIGHT, Path("/builds/1/ci gate")).run([]) == "oomscope gate run memory.yaml"


def test_what_was_set_is_set_again() -> None:
    set_ = replace(NIGHT, variables={"PYTORCH_ALLOC_CONF": "a:True,b:[c d]", "NVIDIA_TF32_OVERRIDE": "0"})
    command = Commands.of(set_).run([])
    assert command.startswith("NVIDIA_TF32_OVERRIDE=0 PYTORCH_ALLOC_CONF='a:True,b:[c d]' oomscope gate run ")
    assert with_variables({}, "true") == "true"


@pytest.mark.parametrize("verb", ["run", "update", "calibrate"])
def test_odd_names_reach_the_suite_which_says_that_it_has_no_such_case(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "-ci").mkdir()
    (tmp_path / "-ci/memory.yaml").write_text("cases: [{name: tiny, preset: gpt-tiny}]\n")
    root = str(tmp_path)
    odd = replace(NIGHT, suite=f"{root}/-ci/memory.yaml", home=Home(path="-ci/memory.yaml"), baseline=f"{root}/b.yaml")
    commands = Commands.of(odd)
    made = {
        "run": commands.run(["-x; $y"], "--bisect"),
        "update": commands.update(accept=["-x; $y"]),
        "calibrate": commands.calibrate(["-x; $y"]),
    }
    program, *words = shlex.split(made[verb])
    assert (program, words[:3]) == ("oomscope", ["gate", verb, "./-ci/memory.yaml"])
    assert run(words) == ExitCode.USAGE
    assert "no case is called '-x; $y'" in capsys.readouterr().err
