"""torch, the GPUs that it sees, and the virtual card.

torch is imported in a process of its own, which may hang, raise or crash: run as a program, this file prints what torch
was built for and what it sees as one line of JSON. Nothing is allocated on a device.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from oomscope.doctor.check import Check, State
from oomscope.errors import MachineUnfitError
from oomscope.torch_versions import OLDEST, text_of
from oomscope.units import format_size
from oomscope.virtual import is_loaded, loading
from oomscope.virtual.sonames import CARD

TIMEOUT_S = 120.0
"""Seconds that importing torch may take: a first import from a network disk can take a minute."""
VIRTUAL_CARD = "virtual card"


class TorchImport:
    """An import of torch that runs beside the other checks. Use it in a ``with`` block, which ends the process."""

    def __init__(self, program: Path = Path(__file__)) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def outcome(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | str:
        """Return :func:`report` of that process, or in one line why there is none."""
        try:
            printed, errors = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"importing it took more than {timeout_s:g} s"
        status = self._process.returncode
        if status < 0:
            return f"importing it ended by {signal.Signals(-status).name}"
        if status:
            return next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), f"status {status}")
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found


def report() -> dict[str, Any]:
    """Return what torch was built for, the devices that it sees, and the warnings of asking for them.

    A CUDA build without NVIDIA's libraries is imported on the virtual card, which is no device of the machine.
    """
    loading.load_where_needed()
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_loaded():
            warnings.warn("NVIDIA's libraries are not installed", stacklevel=1)
        devices = torch.cuda.device_count() if not is_loaded() and torch.cuda.is_available() else 0
        backend = torch.cuda.get_allocator_backend() if torch.version.cuda or torch.version.hip else None
    return {
        "version": torch.__version__,
        "path": str(torch.__file__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "devices": devices,
        "allocator_backend": backend,
        "warnings": [" ".join(str(warning.message).split()) for warning in caught],
    }


def torch_checks(torch: dict[str, Any] | str) -> Iterator[Check]:
    """Yield the checks of torch and of CUDA in it."""
    disables = "every probe, and with it bisect and gate"
    if isinstance(torch, str):
        try:
            found, remedy = f"torch {metadata.version('torch')} cannot be imported: {torch}", "reinstall it"
        except metadata.PackageNotFoundError:
            found, remedy = "not installed", "pip install 'oomscope[probe]'"
        yield Check("torch", State.FAILS, found, disables, remedy)
        return
    cuda, version = torch["cuda"], torch["version"]
    build = f"for CUDA {cuda}" if cuda else f"for ROCm {torch['hip']}" if torch["hip"] else "without CUDA"
    found = f"torch {version}, built {build}"
    values = {name: torch[name] for name in ("version", "path", "cuda")}
    numbers = [int(number) for number in version.split(".")[:2] if number.isdecimal()]
    if len(numbers) == 2 and tuple(numbers) < OLDEST:
        remedy = f"install torch {text_of(OLDEST)} or newer"
        yield Check("torch", State.FAILS, found, disables, remedy, values)
    else:
        yield Check("torch", State.OK, found, values=values)
    yield _cuda(torch)


def _cuda(torch: dict[str, Any]) -> Check:
    values = {name: torch[name] for name in ("devices", "allocator_backend")}
    if torch["devices"]:
        count = "1 device" if torch["devices"] == 1 else f"{torch['devices']} devices"
        return Check("CUDA", State.OK, f"CUDA {torch['cuda']}, {count}", values=values)
    remedy = "install PyTorch's CUDA build, also for the virtual card"
    if torch["cuda"] is not None:
        found = next(iter(torch["warnings"]), "torch sees no device")
        remedy = "see the NVIDIA driver below, and CUDA_VISIBLE_DEVICES"
    elif torch["hip"]:
        found = "torch is built for ROCm, which oomscope does not measure"
    else:
        found = "torch is built without it"
    return Check("CUDA", State.MISSING, found, "--backend cuda", remedy, values)


def virtual_card_check() -> Check:
    """Return the check of the virtual card; nothing is loaded."""
    try:
        torch = loading.check()
    except MachineUnfitError as error:
        found = error.message if error.where == VIRTUAL_CARD else f"{error.where}: {error.message}"
        return Check(VIRTUAL_CARD, State.MISSING, found, "--backend virtual", error.remedy or "")
    library = loading.LIBRARIES / CARD
    size = library.stat().st_size
    found = f"{CARD} ({format_size(size)}) has all that torch {torch.version} needs"
    return Check(VIRTUAL_CARD, State.OK, found, values={"path": str(library), "size_bytes": size})


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(report())}\n")
