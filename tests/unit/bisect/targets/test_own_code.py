"""What lies in a checkout is searched alike, whether a harness, an entry or a command drives it."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.result import CommitCulprit
from oomscope.bisect.targets.preparation import Preparation
from oomscope.bisect.targets.subjects import OwnCode, own_code_of
from oomscope.probe.job import CheckoutTarget, CommandTarget, EntryTarget, HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.worlds import SETTINGS, World, harness_code, measure

ENTRY = EntryTarget(entry="tiny.train:build", repo="")
COMMAND = CommandTarget(command="python 'a b.py'", metric_regex=r"peak (\d+)", repo="")
HOLDS_ENTRY = {"tiny/train.py": "def build(ctx): ..."}
KINDS = ["harness", "entry", "command"]


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> OwnCode:
    harness = tmp_path / "harness.py"
    harness.touch()
    if request.param == "harness":
        return harness_code(harness, SETTINGS)
    return own_code_of(ENTRY if request.param == "entry" else COMMAND, SETTINGS)


def size_of(job: ProbeJob, _progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    """Bytes: the number in ``scale.txt`` times the width of ``conf.json``, times ``BATCH`` of the environment."""
    assert isinstance(job.target, CheckoutTarget)
    folder = job.target.place
    width = json.loads((folder / "conf.json").read_text())["width"]
    return measure(int((folder / "scale.txt").read_text()) * width * int(job.environment.get("BATCH") or 1))


def test_packages_that_no_probe_installed_are_named_where_there_is_no_culprit(world: World, subject: OwnCode) -> None:
    good = world.repo.commit("good", {**HOLDS_ENTRY, "conf.json": '{"width": 10}', "scale.txt": "1"})
    world.repo.commit(
        "newer packages", {"requirements/train.txt": "torch==3", "requirements-dev.txt": "x", "uv.lock": "y"}
    )
    request = world.request(good, subject=subject)
    result = bisect_commits(request, probe=size_of, environment={})
    said = "good and bad differ in requirements-dev.txt, requirements/train.txt, uv.lock, but oomscope installs"
    assert [said in note for note in result.notes] == ([] if isinstance(subject.target, CommandTarget) else [True])
    compared = "compares copies of both versions of requirements-dev.txt"
    assert all(note.endswith(compared) for note in result.notes)
    installed = replace(request, preparation=Preparation(setup="true"))
    assert bisect_commits(installed, probe=size_of, environment={}).notes == ()


def test_a_note_promises_to_compare_only_files_that_can_be_read(world: World, subject: OwnCode) -> None:
    good = world.repo.commit("good", {**HOLDS_ENTRY, "conf.json": '{"width": 10}', "scale.txt": "1"})
    world.repo.commit("newer packages", {"pixi.lock": "x"})
    result = bisect_commits(world.request(good, subject=subject), probe=size_of, environment={})
    said = [note.rpartition("; ")[2] for note in result.notes]
    wanted = "--axis environment --packages A..B compares the output of pip freeze in two environments"
    assert said == ([] if isinstance(subject.target, CommandTarget) else [wanted])


def test_the_folder_that_is_named_is_what_is_measured(world: World, tmp_path: Path, subject: OwnCode) -> None:
    inside = "projects/a model"
    ours = {f"{inside}/{name}": text for name, text in {**HOLDS_ENTRY, "conf.json": '{"width": 10}'}.items()}
    good = world.repo.commit("good", {**ours, f"{inside}/scale.txt": "1", "scale.txt": "500", "conf.json": "{}"})
    world.repo.commit("elsewhere", {"scale.txt": "1"})
    guilty = world.repo.commit("guilty", {f"{inside}/scale.txt": "200"})

    request = world.request(good, subject=subject, repo=world.repo.path / inside)
    result = bisect_commits(request, probe=size_of, environment={})

    assert isinstance(result.culprit, CommitCulprit)
    assert result.culprit.commit == guilty
    assert result.first_bad is not None
    *lay_out, probe = result.first_bad.commands
    for command in lay_out:
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    words = {
        HarnessTarget: ["--harness", f"{tmp_path}/harness.py"],
        EntryTarget: ["--entry", "tiny.train:build"],
        CommandTarget: list(COMMAND.words()),
    }
    named = ["oomscope", "probe", *words[type(subject.target_at(""))]]
    assert shlex.split(probe) == [*named, "--repo", f"repo-{guilty[:10]}/{inside}"]
    assert (tmp_path / f"repo-{guilty[:10]}" / inside / "scale.txt").read_text() == "200"
