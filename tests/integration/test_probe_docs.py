"""The report in ``docs/probe.md`` is what its command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from oomscope.errors import ExitCode
from tests.integration.program import oomscope

PAGE = Path(__file__).resolve().parents[2] / "docs" / "probe.md"
TORCH = "2.13"
"""Whose operations and allocator rules the bytes in the page are."""


def without_line_numbers(text: str) -> str:
    return re.sub(r"(\.py):\d+", r"\1", text)


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith(TORCH), reason=f"the bytes in the page are torch {TORCH}'s")
def test_the_report_in_the_page_is_what_its_command_prints() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## What is printed")[1].split("\n## ")[0]
    command, report = re.findall(r"```(?:console)?\n(.*?)```", section, re.DOTALL)
    done = oomscope(*shlex.split(command)[1:], "--quiet")
    assert done.returncode == ExitCode.OOM, done.stderr
    assert without_line_numbers(done.stdout).startswith(without_line_numbers(report))
