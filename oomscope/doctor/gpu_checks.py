"""The NVIDIA driver, the library that speaks for it (NVML), and what others hold of the cards."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from oomscope.doctor.check import Check, State
from oomscope.errors import MachineUnfitError
from oomscope.probe.machine.nvml import Card, list_cards
from oomscope.units import MiB, format_size

DRIVER = Path("/proc/driver/nvidia/version")
WORTH_TELLING = 64 * MiB
"""What a display takes of a card is none of anybody's business."""
_NEEDS_IT = "--backend cuda"


def gpu_checks(environment: Mapping[str, str], driver: Path = DRIVER) -> Iterator[Check]:
    """Yield the checks of driver, NVML and every card."""
    cards = _cards()
    loaded = _loaded(driver) or _told(cards)
    yield _driver(loaded)
    yield _nvml(cards, has_driver=bool(loaded))
    if not isinstance(cards, str):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        yield from (_card(card, visible) for card in cards)


def _cards() -> tuple[Card, ...] | str:
    """Return the cards, or in one line why they cannot be read."""
    try:
        return list_cards()
    except MachineUnfitError as error:
        return error.message
    except ImportError:
        return "the module pynvml is not installed"
    except (AttributeError, TypeError):
        return "the module pynvml is older than what is needed"


def _told(cards: tuple[Card, ...] | str) -> str | None:
    """Return the driver that NVML names: Windows' subsystem for Linux has one without a kernel module of its own."""
    return None if isinstance(cards, str) or not cards else f"driver {cards[0].memory.driver_version}"


def _loaded(driver: Path) -> str | None:
    """Return the kernel module's own line; None where none is loaded."""
    try:
        return driver.read_text(errors="replace").splitlines()[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return None


def _driver(loaded: str | None) -> Check:
    if loaded is not None:
        return Check(part="NVIDIA driver", state=State.OK, found=" ".join(loaded.split()))
    return Check(
        part="NVIDIA driver",
        state=State.MISSING,
        found="no kernel module is loaded",
        disables=_NEEDS_IT,
        remedy="on a machine with a GPU: install the driver, or give the container access to it",
    )


def _nvml(cards: tuple[Card, ...] | str, *, has_driver: bool) -> Check:
    name = module_version()
    if isinstance(cards, str):
        remedy = "pip install --force-reinstall nvidia-ml-py" if has_driver else "see the NVIDIA driver above"
        if is_deprecated_module():
            remedy = "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
        return Check(part="NVML", state=State.MISSING, found=f"{name}: {cards}", disables=_NEEDS_IT, remedy=remedy)
    if is_deprecated_module():
        return Check(
            part="NVML",
            state=State.NOTE,
            found=f"{name}: the deprecated package pynvml stands before it",
            disables="its answers are those of an old release",
            remedy="pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
        )
    return Check(part="NVML", state=State.OK, found=f"{name}, {'1 card' if len(cards) == 1 else f'{len(cards)} cards'}")


def module_version() -> str:
    """Return which package the module ``pynvml`` is said to come from."""
    for name in ("nvidia-ml-py", "pynvml"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "nvidia-ml-py"


def is_deprecated_module() -> bool:
    """Whether ``import pynvml`` finds the package of that name and not nvidia-ml-py's module, a single file."""
    try:
        found = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return False
    return found is not None and found.submodule_search_locations is not None


def _card(card: Card, visible: str | None) -> Check:
    found = f"{card.name}, {format_size(card.memory.total_bytes)}, {format_size(card.memory.used_bytes)} in use"
    values: dict[str, int | str | None] = {
        "name": card.name,
        "uuid": card.uuid,
        "total_bytes": card.memory.total_bytes,
        "used_bytes": card.memory.used_bytes,
        "processes": len(card.processes),
        "CUDA_VISIBLE_DEVICES": visible,
    }
    part = f"card {card.index}"
    if card.memory.used_bytes <= WORTH_TELLING:
        return Check(part=part, state=State.OK, found=found, values=values)
    pids = ", ".join(str(pid) for pid in card.processes)
    return Check(
        part=part,
        state=State.NOTE,
        found=f"{found} by {f'process {pids}' if pids else 'processes that cannot be seen from here'}",
        disables="probes on it have that much less, and runs are tagged foreign where that decides",
        remedy="end them, or choose another card by CUDA_VISIBLE_DEVICES",
        values=values,
    )
