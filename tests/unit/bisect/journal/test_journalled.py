"""Searches that are cut off and gone on with."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomscope.bisect.change_bisect import bisect_configs, bisect_environment
from oomscope.bisect.changes.environment import EnvironmentDeltas
from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.journal.store import JournalFile, JournalStore
from oomscope.bisect.requests import CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.run.prober import SearchRequest
from oomscope.bisect.run.state_dirs import JournalUse, StateDirs
from oomscope.bisect.vcs.git import Git, _failure
from oomscope.bisect.vcs.ranges import FileAt, FileRange
from oomscope.errors import GitError, InputError, MachineUnfitError
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.worlds import SETTINGS, World, culprit, harness_code, measure

SIZES = [100 + index for index in range(12)] + [2000 + index for index in range(8)]
CONFIG = "preset: gpt-tiny\nmodel: {{position_embedding_type: rope, hidden_size: {0}}}\ndata: {{seq_length: {1}}}\n"


def sizes(world: World, contents: Sequence[int | str]) -> list[str]:
    return world.repo.import_line("size.txt", [f"{content}\n" for content in contents], "commit {0}")


def store(world: World) -> JournalStore:
    return JournalStore(world.state_dirs.journals)


def interrupted(
    search: Callable[..., BisectResult], request: SearchRequest, probe: Callable[[ProbeJob], ProbeResult], after: int
) -> None:
    left = iter(range(after))

    def cut(job: ProbeJob, progress: object = None, /) -> ProbeResult:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return probe(job)

    with pytest.raises(KeyboardInterrupt):
        search(request, probe=cut, environment={})


def cut_off(world: World, hashes: list[str], after: int, **options: Any) -> CommitRequest:
    """Search until ``after`` probes are answered, as one that is killed; return what goes on with it."""
    request = world.request(hashes[0], use_cache=False, **options)
    interrupted(bisect_commits, request, world.probe, after)
    return replace(request, journal=JournalUse(search=store(world).numbers()[-1]))


def answer(result: BisectResult) -> dict[str, Any]:
    """Return the document without what a second life may differ in."""
    document = result.to_json()
    for name in ("cost", "search"):
        document.pop(name, None)
    for probe in document["probes"]:
        probe.update(wall_s=0, cached=False)
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


def again(world: World, request: SearchRequest, **means: Any) -> BisectResult:
    assert isinstance(request, CommitRequest)
    return bisect_commits(request, **{"probe": world.probe, "environment": {}, **means})


@pytest.mark.parametrize("after", [0, 4])
def test_a_search_that_was_cut_off_resumes_without_repeating_a_probe(world: World, after: int) -> None:
    hashes = sizes(world, SIZES)
    request = cut_off(world, hashes, after)
    result = again(world, request)
    assert culprit(result).commit == hashes[12]
    assert len(world.probe.ran) == len(set(world.probe.ran)) == len(result.probes)
    assert result.search == 1
    undisturbed = World(world.repo.path.parent / "other")
    undisturbed.repo = world.repo
    undisturbed.harness = world.harness
    assert answer(result) == answer(undisturbed.bisect(hashes[0]))


def test_a_search_that_ended_says_its_answer_again(world: World) -> None:
    hashes = sizes(world, SIZES)
    first = world.bisect(hashes[0])
    ran = len(world.probe.ran)
    second = again(world, replace(world.request(hashes[0]), journal=JournalUse(search=1)))
    assert answer(second) == answer(first)
    assert len(world.probe.ran) == ran
    search_state = store(world).read(1)
    assert len(search_state.answers) == len(first.probes)
    assert search_state.closing is not None
    assert search_state.closing.outcome == "culprit"
    assert search_state.closing.culprit == f"{hashes[12]} commit 12"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_wherever_a_kill_cut_the_journal_the_answer_is_the_same(world: World, share: float) -> None:
    hashes = sizes(world, SIZES)
    expected = answer(world.bisect(hashes[0], use_cache=False))
    ran, path = len(world.probe.ran), store(world).path(1)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + rest[: round(share * len(rest))])
    assert (
        answer(again(world, replace(world.request(hashes[0], use_cache=False), journal=JournalUse(search=1))))
        == expected
    )
    assert len(world.probe.ran) <= ran + round((1 - share) * ran) + 1


def test_branches_may_move(world: World) -> None:
    hashes = sizes(world, SIZES)
    request = cut_off(world, hashes, 2)
    world.repo.commit("later", {"size.txt": "5\n"})
    result = again(world, request)
    assert culprit(result).commit == hashes[12]
    assert result.bad == hashes[-1]


def test_a_harness_that_was_edited_is_named(world: World) -> None:
    request = cut_off(world, sizes(world, SIZES), 2)
    world.harness.write_text("# another\n")
    with pytest.raises(InputError, match=r"harness\.py changed since search 1 started; restore what changed"):
        again(world, request)
    world.harness.write_text("# drives it\n")
    again(world, request)


@pytest.mark.parametrize(
    ("environment", "words"),
    [({"BATCH": "8"}, "BATCH"), ({f"V{index}": "1" for index in range(9)}, "V0, V1, V2, V3, V4 and 4 more")],
)
def test_variables_that_changed_are_named(world: World, environment: dict[str, str], words: str) -> None:
    request = cut_off(world, sizes(world, SIZES), 2)
    with pytest.raises(InputError, match=f"{words} changed since search 1 started;"):
        again(world, request, environment=environment)
    again(world, request, environment={"TERM": "dumb"})


def test_no_value_of_a_variable_is_written(world: World) -> None:
    hashes = sizes(world, SIZES)
    bisect_commits(world.request(hashes[0]), probe=world.probe, environment={"API_SECRET": "correct horse"})
    text = store(world).path(1).read_text()
    assert "API_SECRET" in text
    assert "correct horse" not in text


def test_a_disk_that_is_full_costs_the_journal_and_not_the_search(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = sizes(world, SIZES)
    append, lines = JournalFile.append, iter(range(4))

    def full(journal: JournalFile, event: dict[str, Any]) -> None:
        if next(lines, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(journal, event)

    monkeypatch.setattr(JournalFile, "append", full)
    result = world.bisect(hashes[0])
    assert culprit(result).commit == hashes[12]
    (note,) = result.notes
    assert "cannot be written (No space left on device): a resumed search repeats what it lacks" in note
    assert "\n" not in note
    resumed = again(world, replace(world.request(hashes[0]), journal=JournalUse(search=result.search)))
    assert culprit(resumed).commit == hashes[12]


def test_a_disk_without_room_for_a_checkout_stops_the_search(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """git of a full disk says that it cannot write a file, and not why."""
    hashes = sizes(world, SIZES)
    shown, output = iter(range(2)), Git.output

    def full(git: Git, *arguments: str, stdin: bytes = b"") -> bytes:
        if arguments[0] == "checkout" and next(shown, None) is None:
            raise _failure("error: unable to write file size.txt\n", 1, git.directory)
        return output(git, *arguments, stdin=stdin)

    monkeypatch.setattr(Git, "output", full)
    request = replace(world.request(hashes[0]), journal=JournalUse(words=("a..b",)))
    with pytest.raises(MachineUnfitError) as stopped:
        again(world, request)
    assert re.fullmatch(r"git: unable to write file size.txt, with \S+ \S+ free on the disk", stopped.value.message)
    assert "continue with oomscope bisect resume" in str(stopped.value)
    assert len(world.probe.ran) == 2


def test_a_search_that_was_refused_leaves_no_journal(world: World) -> None:
    hashes = sizes(world, SIZES)
    with pytest.raises(GitError):
        again(world, world.request("no-such-revision"))
    world.harness.write_text("def (")
    with pytest.raises(InputError):
        again(world, world.request(hashes[0]))
    assert store(world).numbers() == []


def test_an_error_that_ends_a_search_is_written(world: World) -> None:
    hashes = sizes(world, SIZES)

    def unfit(job: ProbeJob, progress: object = None, /) -> ProbeResult:
        raise MachineUnfitError("no such GPU")

    with pytest.raises(MachineUnfitError):
        again(world, world.request(hashes[0]), probe=unfit)
    closing = store(world).read(1).closing
    assert closing is not None
    assert (closing.outcome, closing.message) == ("stopped", "no such GPU")
    assert culprit(again(world, replace(world.request(hashes[0]), journal=JournalUse(search=1)))).commit == hashes[12]


def bytes_of_job(job: ProbeJob) -> ProbeResult:
    factor = int(job.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") or job.environment.get("WORKERS") or 1)
    sequence = job.target.config["data"]["seq_length"] if isinstance(job.target, BundledTarget) else 100
    return measure(sequence * factor)


def requests(tmp_path: Path) -> dict[str, tuple[Callable[..., BisectResult], SearchRequest]]:
    world = World(tmp_path)
    world.repo.commit("one", {"a.yaml": CONFIG.format(128, 64), "train.py": ""})
    world.repo.commit("two", {"a.yaml": CONFIG.format(256, 2048), "train.py": ""})
    low, high = {"WORKERS": "1", "B": "1"}, {"WORKERS": "80", "C": "1"}
    layer = EnvironmentDeltas(low=low, high=high, ends=("good.env", "bad.env"))
    common: dict[str, Any] = {"state_dirs": StateDirs(tmp_path / "state"), "use_cache": False}
    held = FileRange(good=FileAt(revision="HEAD^", path="a.yaml"), bad=FileAt(revision="main", path="a.yaml"))
    subject = harness_code(world.harness, SETTINGS)
    return {
        "held": (bisect_configs, ConfigRequest(range=held, repo=world.repo.path, **common)),
        "surroundings": (
            bisect_environment,
            EnvironmentRequest(repo=world.repo.path, revision="main", subject=subject, layers=(layer,), **common),
        ),
    }


KINDS = {"held": "config", "surroundings": "environment"}


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_of_search_goes_on(tmp_path: Path, name: str) -> None:
    search, request = requests(tmp_path)[name]
    ran: list[ProbeJob] = []

    def probe(job: ProbeJob, progress: object = None, /) -> ProbeResult:
        ran.append(job)
        return bytes_of_job(job)

    interrupted(search, request, probe, 1)
    result = search(replace(request, journal=JournalUse(search=1)), probe=probe, environment={})
    assert result.outcome == "culprit"
    total = len(ran)
    assert total == sum(record.outcome is not None for record in result.probes)
    undisturbed = search(replace(request, state_dirs=StateDirs(tmp_path / "other")), probe=probe, environment={})
    assert answer(result) == answer(undisturbed)
    assert len(ran) == 2 * total
    assert JournalStore(request.state_dirs.journals).read(1).begun.kind == KINDS[name]
