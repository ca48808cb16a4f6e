"""A pytest that is too old for the plugin is refused in one line when it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.pytest_plugin.age import refuse_older

START = (
    "import pluggy, sys; pluggy.__version__ = '1.0.0'; import pytest; sys.exit(pytest.main(['-q', {}, sys.argv[1]]))"
)


@pytest.mark.parametrize(("pytest_", "pluggy"), [("7.0.1", "1.2"), ("7.4.4", "1.7.0"), ("10.0.0.dev1+g1", "2.0.0b1")])
def test_what_is_new_enough_passes(pytest_: str, pluggy: str) -> None:
    refuse_older(pytest_, pluggy)


@pytest.mark.parametrize(("pytest_", "pluggy"), [("6.2.5", "1.7.0"), ("7.1.3", "1.0.0"), ("7.1.3", "1.1.9")])
def test_what_is_older_is_refused_by_name(pytest_: str, pluggy: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"these are pytest {pytest_} and pluggy {pluggy}; .*-p no:oomscope"):
        refuse_older(pytest_, pluggy)


@pytest.mark.parametrize(("option", "code"), [("'-p', 'no:cacheprovider'", 4), ("'-p', 'no:oomscope'", 0)])
def test_it_is_one_line_at_the_start(tmp_path: Path, option: str, code: int) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    command = [sys.executable, "-c", START.format(option), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    said = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == code
    assert [line.partition(" needs")[0] for line in said] == ["ERROR: oomscope's plugin"] * (code != 0)
