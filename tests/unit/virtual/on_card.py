"""Runs scripts of tests in a process with the virtual card, which a test process cannot use and then use anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PREAMBLES = {
    "calls": "from tests.unit.virtual.cuda_calls import *\n",
    "torch": "import tests.card\nimport torch\nfrom tests.unit.virtual.torch_calls import *\n",
}


def on_card(
    script: str, *, preamble: str = "calls", environment: dict[str, str] | None = None, **settings: object
) -> Any:
    """Run a script; return what it said last.

    Args:
        script: Python, with the names of the preamble.
        preamble: ``calls``: CUDA's calls without torch (``cuda_calls``); ``torch``: PyTorch (``torch_calls``).
        environment: further variables.
        settings: keys of OOMSCOPE_CARD.
    """
    variables = {"OOMSCOPE_CARD": ";".join(f"{key}={value}" for key, value in settings.items()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLES[preamble] + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | variables | (environment or {}),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
