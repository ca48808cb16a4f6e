"""Variables as changes: which there are, what a mixture of them is, and files of them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from oomscope.bisect.changes.environment import EnvironmentDeltas, read_environment
from oomscope.errors import InputError

ALLOC = "PYTORCH_ALLOC_CONF"
LOW = {"A": "1", "SAME": "x", ALLOC: "expandable_segments:True,max_split_size_mb:64", "SSH_TTY": "/1"}
HIGH = {"B": "2", "SAME": "x", ALLOC: "max_split_size_mb:32,expandable_segments:True", "SSH_TTY": "/2"}
DELTAS = EnvironmentDeltas(low=LOW, high=HIGH)


def test_what_differs_is_a_change_and_the_login_is_not() -> None:
    assert DELTAS.keys == ("env:A", "env:B", f"env:{ALLOC}/max_split_size_mb")


def test_credentials_are_left_out_and_tokens_of_text_are_not() -> None:
    names = (
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "db_password",
        "MAX_TOKENS",
        "TOKENIZERS_PARALLELISM",
    )
    deltas = EnvironmentDeltas(low={}, high=dict.fromkeys(names, "1"))
    assert deltas.keys == ("env:MAX_TOKENS", "env:TOKENIZERS_PARALLELISM")
    assert "HF_TOKEN" not in deltas.commands(frozenset({0, 1}), ("x",))[-1]


def test_no_change_is_the_good_side_and_all_changes_are_the_bad_one() -> None:
    assert DELTAS.values(frozenset()) == {"A": "1", "B": None, ALLOC: LOW[ALLOC]}
    everything = DELTAS.values(frozenset(range(3)))
    assert everything == {"A": None, "B": "2", ALLOC: "expandable_segments:True,max_split_size_mb:32"}


def test_settings_of_the_allocator_are_changed_one_by_one() -> None:
    deltas = EnvironmentDeltas(
        low={ALLOC: "roundup_power2_divisions:[256:1,512:2,>:4]"}, high={ALLOC: "max_split_size_mb:32"}
    )
    assert deltas.keys == (f"env:{ALLOC}/roundup_power2_divisions", f"env:{ALLOC}/max_split_size_mb")
    assert deltas.values(frozenset({0})) == {ALLOC: None}
    assert deltas.values(frozenset({1})) == {ALLOC: "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:32"}
    change = deltas.change(deltas.keys[0])
    assert (change.good, change.bad) == ("[256:1,512:2,>:4]", None)


def test_settings_that_torch_would_refuse_are_not_valid() -> None:
    deltas = EnvironmentDeltas(low={}, high={ALLOC: "max_split_size_mb:1"})
    assert deltas.is_valid(frozenset())
    assert not deltas.is_valid(frozenset({0}))


def test_the_command_sets_them_too() -> None:
    deltas = EnvironmentDeltas(low={"A": "1 and $x", "C": "3"}, high={"B": "2"})
    command = deltas.commands(frozenset(), ("printenv A B C || true",))[-1]
    shell = f"export B=theirs; {command}"
    said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["1 and $x", "3"]
    assert shlex.split(command)[:3] == ["env", "-u", "B"]


def test_a_file_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "good.env"
    file.write_text("# comment\n\nexport A=1\nB='x y'\nC=x y # z\nD=\nE=a=b\n")
    assert read_environment(file) == {"A": "1", "B": "x y", "C": "x y # z", "D": "", "E": "a=b"}


@pytest.mark.parametrize("text", ["A\n", "A=1\n  1B=2\n", "A B=1\n"])
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.env"
    file.write_text(text)
    number = len(text.splitlines())
    with pytest.raises(InputError, match=rf"bad\.env:{number}: .* is not NAME=VALUE"):
        read_environment(file)
