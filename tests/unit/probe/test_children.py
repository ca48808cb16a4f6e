"""Processes that a target starts anew can import torch, and see no card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.capture.arming import STARTED
from oomscope.probe.machine import children
from oomscope.probe.targets import checkout_imports


@pytest.mark.skipif(sys.platform != "linux", reason="the virtual card needs Linux")
def test_a_python_that_is_started_imports_torch_and_sees_no_card() -> None:
    environment = os.environ | children.variables({STARTED: checkout_imports.__name__})
    assert environment[STARTED].startswith(f"{checkout_imports.__name__},"), "the checkout's code is imported there too"
    asks = "import torch; print(torch.ones(2).sum().item(), torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", asks], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("2.0 False\n", 0), done.stderr


def test_another_torch_is_imported_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('of its own')")
    (tmp_path / "torch" / "version.py").write_text("cuda = None\n__version__ = '2.15.0+cpu'\n")
    environment = os.environ | children.variables({"PYTHONPATH": str(tmp_path)})
    words = [sys.executable, "-c", "import torch"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("of its own\n", 0), done.stderr
