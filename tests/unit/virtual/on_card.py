"""Runs scripts of tests in a process with the virtual card, which a test process cannot use and then use anew."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from tests.ranks import PRELOADED

ROOT = Path(__file__).parents[3]
_CALLS = "from tests.unit.virtual.cuda_calls import *\n"
PREAMBLES = {
    "calls": _CALLS,
    "nccl": f"{_CALLS}from tests.unit.virtual.nccl_calls import *\n",
    "torch": "import tests.card\nimport torch\nfrom tests.unit.virtual.torch_calls import *\n",
}


def on_card(
    script: str,
    *,
    preamble: str = "calls",
    environment: dict[str, str] | None = None,
    fresh: bool = False,
    **settings: object,
) -> Any:
    """Run a script; return what it said last.

    Args:
        script: Python, with the names of the preamble.
        preamble: ``calls``: CUDA's calls without torch (``cuda_calls``); ``nccl``: NCCL's too
            (``nccl_calls``); ``torch``: PyTorch (``torch_calls``).
        environment: further variables.
        fresh: import PyTorch in the process itself, which is forked otherwise.
        settings: keys of OOMSCOPE_CARD.
    """
    variables = {"OOMSCOPE_CARD": ";".join(f"{key}={value}" for key, value in settings.items()), "OMP_NUM_THREADS": "1"}
    program = PREAMBLES[preamble] + textwrap.dedent(script)
    variables |= environment or {}
    if preamble == "torch" and not fresh:
        return _forked(program, variables)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _forked(program: str, variables: dict[str, str]) -> Any:
    """Run ``program`` in a fork of a process that has imported torch, and has not used the card."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(list(PRELOADED))
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        process = forks.Process(target=_child, args=(program, variables, str(said)))
        process.start()
        process.join()
        text = said.read_text()
    assert process.exitcode == 0, text[-4000:]
    return json.loads(text.splitlines()[-1])


def _child(program: str, variables: dict[str, str], said: str) -> None:
    os.environ.update(variables)
    os.chdir(ROOT)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
    os._exit(0)
