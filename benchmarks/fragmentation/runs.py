"""Run a program on a virtual card of a given size, under given allocator settings, each time in a process of its own.

The processes are forks of one that has imported torch and called nothing of CUDA, so a run takes some hundredths of a
second; :func:`run_fresh` starts an interpreter instead, which is how a reader would repeat a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from oomscope import virtual

NON_TORCH = 1024**3
"""Bytes of the card that its context holds: the default of ``device.non_torch_bytes``."""
FRESH_INTERPRETER = (
    "import json, sys; from oomscope import virtual; virtual.load(); sys.path.insert(0, sys.argv[1]); "
    "import programs; print(json.dumps(programs.run(sys.argv[2])))"
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a program, in bytes as torch counted them."""

    name: str
    failed: str | None
    """What torch said where memory ran out; None where the program ran to its end."""
    requested_bytes: int
    """Largest requested bytes of live tensors."""
    reserved_bytes: int
    """Largest reserved bytes."""
    retries: int


def card_for(available_bytes: int | None, conf: str = "") -> dict[str, str]:
    """Return the environment of a card that leaves so much to the allocator; None: as much as any program asks for."""
    total = (available_bytes or 2**42) + NON_TORCH
    settings = virtual.CardSettings(total_bytes=total, used_bytes=NON_TORCH)
    return {**settings.variables(), "PYTORCH_ALLOC_CONF": conf}


def warm_up() -> None:
    """Import what the runs need into this process, before the first fork; call nothing of CUDA."""
    virtual.load()
    sys.path.insert(0, str(Path(__file__).parent))
    import programs  # noqa: F401
    import torch._dynamo  # noqa: F401 - the first step of an optimizer imports it


def run(name: str, *, available_bytes: int | None = None, conf: str = "") -> Run:
    """Run program ``name`` in a fork of this process; call :func:`warm_up` before."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _run_and_end(name, card_for(available_bytes, conf), writer)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return _read(text, name)


def run_fresh(name: str, *, available_bytes: int | None = None, conf: str = "") -> Run:
    """Run program ``name`` in a new interpreter."""
    arguments = [sys.executable, "-c", FRESH_INTERPRETER, str(Path(__file__).parent), name]
    variables = {**os.environ, **card_for(available_bytes, conf)}
    done = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False)
    return _read(done.stdout or done.stderr, name)


def be_silent() -> None:
    """Say nothing on standard error, where torch warns of each mapping that fails; for a fork."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a file descriptor is what is wanted
        os.dup2(nowhere.fileno(), 2)


def _run_and_end(name: str, variables: dict[str, str], writer: int) -> None:
    """Write the run's numbers, or why there are none, and end the process without the parent's handlers."""
    import programs

    os.environ.update(variables)
    be_silent()
    try:
        text = json.dumps(programs.run(name))
    except BaseException:  # noqa: BLE001 - the parent says what it was
        text = traceback.format_exc()
    os.write(writer, text.encode())
    os._exit(0)


def _read(text: str, name: str) -> Run:
    try:
        return Run(**json.loads(text))
    except ValueError:
        raise RuntimeError(f"{name} ended without an answer: {text.strip()[-2000:]}") from None
