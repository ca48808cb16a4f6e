"""A search over the configuration that lies in each commit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.change_bisect import bisect_configs
from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest, ConfigRequest
from oomscope.bisect.targets.subjects import ConfigInRepo
from oomscope.bisect.vcs.ranges import FileAt, FileRange
from oomscope.errors import ConfigError, GitError, UsageError
from oomscope.probe.job import BundledTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.worlds import World, culprit, measure

CONFIG = """\
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 128}
data: {seq_length: %s}
"""


def config_probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    assert isinstance(job.target, BundledTarget)
    return measure(job.target.config["data"]["seq_length"])


def config_request(world: World, good: str, *overrides: str) -> CommitRequest:
    subject = ConfigInRepo(path="./conf/train.yaml", overrides=overrides)
    return replace(world.request(good), subject=subject)


def test_a_configuration_in_the_repository(world: World) -> None:
    contents = ["512", "768", "1024", "1280"]
    hashes = []
    for index, content in enumerate(contents):
        hashes.append(world.repo.commit(f"seq {content}", {"conf/train.yaml": CONFIG % content}))
        world.repo.commit("refactor", {"code.py": str(index)})
    result = bisect_commits(config_request(world, hashes[0]), probe=config_probe, environment={})
    found = culprit(result)
    assert found.commit == hashes[2]
    assert [(change.key, change.good, change.bad) for change in found.keys] == [("data.seq_length", 768, 1024)]
    assert (result.candidates, result.considered) == (7, 3)
    assert result.first_bad is not None
    show, probe = result.first_bad.commands
    assert show.endswith(f"show {hashes[2]}:conf/train.yaml > train-{hashes[2][:10]}.yaml")
    assert probe == f"oomscope probe train-{hashes[2][:10]}.yaml"


def test_arguments_of_another_program_in_the_repository(world: World) -> None:
    line = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 999 --tokenizer-type NullTokenizer "
        "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1 --transformer-impl local "
    )
    hashes = [
        world.repo.commit(f"seq {length}", {"train.sh": f"{line}--seq-length {length}"}) for length in (512, 768, 1024)
    ]
    subject = ConfigInRepo(path="train.sh", dialect="megatron")
    request = replace(world.request(hashes[0]), subject=subject)
    result = bisect_commits(request, probe=config_probe, environment={})
    assert culprit(result).commit == hashes[2]
    assert result.first_bad is not None
    assert result.first_bad.commands[1] == f"oomscope probe --from megatron train-{hashes[2][:10]}.sh"


def partial_clone(world: World, held: list[str]) -> Path:
    """Return a clone that has the files of the commits ``held`` alone."""
    world.repo.git("config", "uploadpack.allowFilter", "true")
    clone = world.repo.path.with_name("partial")
    world.repo.git("clone", "--quiet", "--filter=blob:none", "--no-checkout", world.repo.path.as_uri(), str(clone))
    for commit in held:
        world.repo.git("-C", str(clone), "show", f"{commit}:conf/train.yaml")
    return clone


def test_a_configuration_that_a_partial_clone_left_out_is_untestable(world: World) -> None:
    hashes = [world.repo.commit(f"seq {size}", {"conf/train.yaml": CONFIG % size}) for size in (512, 768, 1024)]
    world.repo.commit("refactor", {"code.py": ""})
    request = replace(config_request(world, hashes[0]), repo=partial_clone(world, [hashes[0], hashes[2]]))
    result = bisect_commits(request, probe=config_probe, environment={})
    assert [suspect.commit for suspect in result.suspects] == hashes[1:]
    (skipped,) = result.untestable
    assert skipped.commit == hashes[1]
    assert "conf/train.yaml is not in the repository; fetch what the partial clone left out: git" in skipped.reason


def test_a_side_that_a_partial_clone_left_out_is_refused_with_the_remedy(world: World) -> None:
    good, bad = (world.repo.commit(f"seq {size}", {"conf/train.yaml": CONFIG % size}) for size in (512, 1024))
    sides = (FileAt(revision=commit, path="conf/train.yaml") for commit in (good, bad))
    request = ConfigRequest(
        range=FileRange(good=next(sides), bad=next(sides)),
        repo=partial_clone(world, [bad]),
        state_dirs=world.state_dirs,
    )
    with pytest.raises(GitError, match="git fetch --refetch --no-filter"):
        bisect_configs(request, probe=config_probe, environment={})


def test_an_untestable_file_cannot_be_repaired_and_a_renamed_one_is_found_by_both_names(world: World) -> None:
    old, wrong, new = (
        world.repo.commit(f"{name} {size}", {name: CONFIG % size})
        for name, size in (("old.yaml", "512"), ("conf/train.yaml", "-1"), ("conf/train.yaml", "1024"))
    )
    probed = {"probe": config_probe, "environment": {}}
    assert bisect_commits(config_request(world, old), **probed).remedy == (
        "name a later good end (or --find-good); "
        f"if the file was renamed, give two files: {old[:10]}:OLD-NAME..{new[:10]}:NEW-NAME"
    )
    assert bisect_commits(config_request(world, wrong), **probed).remedy == "name a later good end (or --find-good)"


def test_a_configuration_that_neither_end_has_is_a_slip(world: World) -> None:
    good = world.repo.commit("one", {"conf/train.yaml": "a: 1\n"})
    world.repo.commit("two", {"conf/train.yaml": "a: 2\n"})
    subject = ConfigInRepo(path="conf/trian.yaml")
    with pytest.raises(UsageError, match=r"neither .* has this file"):
        bisect_commits(replace(world.request(good), subject=subject), probe=world.probe, environment={})
    assert not world.probe.jobs


def test_overrides_apply_to_every_commit(world: World) -> None:
    good = world.repo.commit("seq 512", {"conf/train.yaml": CONFIG % "512"})
    world.repo.commit("seq 2048", {"conf/train.yaml": CONFIG % "2048"})
    request = config_request(world, good, "data.seq_length=256")
    result = bisect_commits(request, probe=config_probe, environment={})
    assert result.outcome == "no_culprit"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.micro_batchsize=2", "unknown key"),
        ("device.gpu=nosuch", "override device.gpu=nosuch"),
        ("probe.rank=5", "override probe.rank=5"),
    ],
)
def test_a_wrong_override_is_no_untestable_commit(world: World, override: str, said: str) -> None:
    good = world.repo.commit("seq 512", {"conf/train.yaml": CONFIG % "512"})
    world.repo.commit("seq 2048", {"conf/train.yaml": CONFIG % "2048"})
    with pytest.raises((ConfigError, UsageError), match=re.escape(said)):
        bisect_commits(config_request(world, good, override), probe=config_probe, environment={})
    world.repo.commit("broken", {"conf/train.yaml": "]"})
    with pytest.raises((ConfigError, UsageError), match=re.escape(said)):
        bisect_commits(config_request(world, good, override), probe=config_probe, environment={})
