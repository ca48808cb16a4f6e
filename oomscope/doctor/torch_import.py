"""Imports torch where it can do no harm: in a process of its own, which may hang, raise or crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oomscope.doctor import torch_report

TIMEOUT_S = 120.0
"""A first import from a network disk can take a minute."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The installed torch, as it spoke of itself."""

    version: str
    path: str
    cuda: str | None
    """The CUDA version that it is built for; None for a build without."""
    hip: str | None
    devices: int
    """CUDA devices that it sees."""
    allocator_backend: str | None
    """``native`` or ``cudaMallocAsync``; None for a build without CUDA."""
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Read what :mod:`oomscope.doctor.torch_report` printed."""
        return cls(**(document | {"warnings": tuple(document["warnings"])}))


class TorchImport:
    """An import that runs beside the other checks. Use it in a ``with`` block, which leaves no process behind.

    Args:
        program: the file that is run.
    """

    def __init__(self, program: Path = Path(torch_report.__file__)) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
        self._process: subprocess.Popen[str] | str
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(program)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self._process = f"no process can be started for it ({error.strerror})"

    def __enter__(self) -> Self:
        """Do nothing: it runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """End the process, whatever it does."""
        if not isinstance(self._process, str):
            self._process.kill()
            self._process.communicate()

    def outcome(self, timeout_s: float = TIMEOUT_S) -> Torch | str:
        """Return what torch said, or in one line why it said nothing."""
        if isinstance(self._process, str):
            return self._process
        try:
            said, complaints = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"importing it took more than {timeout_s:g} s"
        status = self._process.returncode
        if status < 0:
            return f"importing it ended by {signal.Signals(-status).name}"
        if status:
            return next(
                (line for line in reversed(complaints.splitlines()) if line.strip()), f"status {status}"
            ).strip()
        try:
            return Torch.from_json(json.loads(said.splitlines()[-1]))
        except (ValueError, IndexError, KeyError, TypeError) as error:
            return f"it printed no report ({type(error).__name__})"
