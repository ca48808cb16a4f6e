"""Processes that a target starts have the card."""

from __future__ import annotations

import subprocess
import sys

import pytest

STARTS = """
import os, subprocess, sys
from oomscope.probe.machine.children import load_card
load_card()
once = os.environ["PYTHONPATH"]
load_card()
assert os.environ["PYTHONPATH"] == once
subprocess.run([sys.executable, "-c", "import torch; print(torch.zeros(2, device='cuda').device)"], check=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the virtual card needs Linux")
def test_a_python_that_is_started_finds_the_card() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("cuda:0\n", 0), done.stderr
