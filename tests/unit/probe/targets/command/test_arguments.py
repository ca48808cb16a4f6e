"""What a command and the options that read it may be, checked before anything runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.job import CommandTarget
from oomscope.probe.targets.command import argv_of, check_command, metric_of, words_of
from oomscope.probe.targets.harness import HarnessError


def target(command: str = "true", **fields: str) -> CommandTarget:
    return CommandTarget(command=command, repo="/nowhere", **fields)


@pytest.mark.parametrize("command", ["true", "./measure.sh", "oomscope probe x.yaml", "sh -c 'a | b'"])
def test_commands(command: str) -> None:
    check_command(target(command))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": ""}, "does not name a program"),
        ({"command": "''"}, "does not name a program"),
        ({"command": "a 'b"}, "cannot be split: no closing quotation"),
        ({"command": "no-such-program-anywhere x"}, "no program no-such-program-anywhere on your PATH"),
        ({"metric_regex": "("}, "is not a regular expression"),
        ({"metric_regex": r"peak \d+"}, "has 0 groups"),
        ({"metric_regex": r"(\d+) (\w+)"}, "has 2 groups"),
        ({"snapshot_glob": ""}, "does not name files in the checkout"),
        ({"snapshot_glob": "/tmp/*.pickle"}, "does not name files in the checkout"),
        ({"snapshot_glob": "out/../../*.pickle"}, "does not name files in the checkout"),
        ({"snapshot_glob": "a**b/**c"}, "--snapshot-glob"),
        ({"snapshot_glob": "*.pickle", "metric_regex": r"(\d+)"}, "both --metric-regex and --snapshot-glob"),
    ],
)
def test_what_cannot_be_run_or_read_is_refused_with_a_remedy(fields: dict[str, str], said: str) -> None:
    if fields.get("snapshot_glob") == "a**b/**c" and sys.version_info >= (3, 13):
        pytest.skip("Python 3.13 takes any pattern")
    with pytest.raises(HarnessError) as refused:
        check_command(target(**fields))
    assert said in str(refused.value)
    assert refused.value.remedy


@given(st.lists(st.text(st.characters(blacklist_characters="\0"), max_size=6), min_size=1, max_size=4))
def test_words_are_those_that_a_shell_would_see(words: list[str]) -> None:
    if words[0]:
        assert words_of(shlex.join(words)) == words


def test_oomscope_is_the_one_that_runs() -> None:
    assert argv_of("sh -c 'a b'") == ["sh", "-c", "a b"]
    argv = argv_of("oomscope probe x.yaml")
    assert argv[0] == sys.executable
    assert argv[-2:] == ["probe", "x.yaml"]
    assert (Path(argv[-4]) / "oomscope" / "__init__.py").is_file()


def test_groups_that_only_group_do_not_count() -> None:
    assert metric_of(r"(?:peak|max): (\d+)").groups == 1
