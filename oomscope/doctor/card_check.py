"""The virtual card: whether its library is there and has what the installed torch wants."""

from __future__ import annotations

from oomscope.doctor.check import Check, State
from oomscope.errors import MachineUnfitError
from oomscope.units import format_size
from oomscope.virtual import loading
from oomscope.virtual.sonames import CARD

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
