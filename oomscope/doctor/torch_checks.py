"""torch, the GPUs that it sees, and the virtual card that is made for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from oomscope.doctor.check import Check, State
from oomscope.doctor.torch_import import Torch
from oomscope.errors import MachineUnfitError
from oomscope.units import format_size
from oomscope.virtual import loading
from oomscope.virtual.sonames import CARD

OLDEST = (2, 11)
"""The first torch with a CUDA 13 build, for which the virtual card is made."""
_NEEDS_IT = "--backend cuda"


def torch_checks(outcome: Torch | str) -> Iterator[Check]:
    """Yield the checks of torch and of CUDA in it."""
    yield _torch(outcome)
    if isinstance(outcome, Torch):
        yield _cuda(outcome)


def _torch(outcome: Torch | str) -> Check:
    disables = "every probe, and with it bisect and gate"
    if isinstance(outcome, str):
        try:
            version: str | None = metadata.version("torch")
        except metadata.PackageNotFoundError:
            version = None
        found = "not installed" if version is None else f"torch {version} cannot be imported: {outcome}"
        remedy = "pip install torch" if version is None else "install it anew, with the build for this machine"
        return Check(part="torch", state=State.FAILS, found=found, disables=disables, remedy=remedy)
    build = f"CUDA {outcome.cuda}" if outcome.cuda else f"ROCm {outcome.hip}" if outcome.hip else "without CUDA"
    found = f"torch {outcome.version}, built {build if build.startswith('without') else f'for {build}'}"
    values: dict[str, int | str | None] = {"version": outcome.version, "path": outcome.path, "cuda": outcome.cuda}
    if _version_of(outcome.version) < OLDEST:
        remedy = f"install torch {OLDEST[0]}.{OLDEST[1]} or newer"
        return Check(part="torch", state=State.FAILS, found=found, disables=disables, remedy=remedy, values=values)
    return Check(part="torch", state=State.OK, found=found, values=values)


def _cuda(torch: Torch) -> Check:
    values: dict[str, int | str | None] = {"devices": torch.devices, "allocator_backend": torch.allocator_backend}
    if torch.hip:
        found, remedy = (
            "torch is built for ROCm, which oomscope does not measure",
            "install PyTorch's CUDA build, for the virtual card",
        )
    elif torch.cuda is None:
        found, remedy = "torch is built without it", "on a machine with a GPU: install a CUDA build of torch"
    elif not torch.devices:
        found = torch.warnings[0] if torch.warnings else "torch sees no device"
        remedy = "see the NVIDIA driver below, and CUDA_VISIBLE_DEVICES"
    else:
        count = "1 device" if torch.devices == 1 else f"{torch.devices} devices"
        return Check(part="CUDA", state=State.OK, found=f"CUDA {torch.cuda}, {count}", values=values)
    return Check(part="CUDA", state=State.MISSING, found=found, disables=_NEEDS_IT, remedy=remedy, values=values)


def _version_of(text: str) -> tuple[int, ...]:
    major, minor, *_ = (*text.split("."), "0")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else OLDEST


PART = "virtual card"


def virtual_card_check() -> Check:
    """Return the check; nothing is loaded."""
    try:
        torch = loading.check()
    except MachineUnfitError as error:
        found = error.message if error.where == PART else f"{error.where}: {error.message}"
        return Check(
            part=PART, state=State.MISSING, found=found, disables="--backend virtual", remedy=error.remedy or ""
        )
    library = loading.LIBRARIES / CARD
    size = library.stat().st_size
    return Check(
        part=PART,
        state=State.OK,
        found=f"{CARD} ({format_size(size)}) has all that torch {torch.version} wants",
        values={"path": str(library), "size_bytes": size},
    )
