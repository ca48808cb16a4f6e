"""What passes between a probe and a process of the program that it started: settings in, a receipt out.

A receipt is a small JSON file, written anew whenever the process knows more. The first one is written when torch has
been imported, so that a program that never does is told from one whose processes died. The last one says how the
process ended, and where its snapshot lies.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

VARIABLE: Final = "OOMSCOPE_PROGRAM"
SUFFIX: Final = ".receipt.json"
State = Literal["running", "stopped", "ended"]
"""``running``: it has not said anything later, or was killed. ``stopped``: the probe ended it, having seen enough.
``ended``: it came to its own end."""


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """How a started program is measured; sizes in bytes. Each of its processes finds it in an environment variable."""

    folder: str
    """Absolute path of the folder that takes receipts and snapshots."""
    backend: Literal["virtual", "cuda"]
    card: str | None = None
    """Name of the virtual card."""
    iterations: int
    """The program is ended after so many steps of the optimizer that stepped first."""
    max_entries: int
    """Size of the ring of events, for each device."""
    max_frames: int = 100
    limit_bytes: int | None = None
    """On a real card: a smaller card to play, in all; None plays none. A virtual card is of that size itself."""
    world_size: int | None = None
    """On a virtual card: the ranks of the world, one of which is played; None leaves worlds to the program."""
    is_recorded: bool = True
    """Whether events are recorded with stacks and positions; else without them, which costs less."""
    most_backwards: int | None = None
    """The program is ended as well once it has run so many backward passes; None for any number."""
    device: int | None = None
    """The card to report of a process that uses several; None for the one that decides."""

    def variables(self) -> dict[str, str]:
        """Return the variable by which :meth:`from_environment` finds these settings."""
        return {VARIABLE: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Return the settings that a probe left in ``environment``; None where it left none."""
        text = environment.get(VARIABLE)
        return cls(**json.loads(text)) if text else None


@dataclass(kw_only=True)
class Refused:
    """A request that the caching allocator refused, as torch reported it to its observer; bytes."""

    device: int
    requested_bytes: int
    free_bytes: int
    moment: list[Any]
    """Phase, iteration and microbatch."""
    held_bytes: int
    """Bytes that this process held of that virtual card; 0 on a real one, which is not asked."""
    snapshot: str
    """The file of the snapshot that was taken at that instant; empty where it could not be written."""
    stats: dict[str, int] = field(default_factory=dict)
    """``torch.cuda.memory_stats`` of the card at that instant."""


@dataclass(kw_only=True)
class Raised:
    """An exception that left the program's main module uncaught."""

    text: str
    """Class, message and place, in one line."""
    details: str
    """The whole traceback."""
    refusal: dict[str, Any] | None = None
    """Refusal of memory (``analysis.failures.Refusal`` as JSON), if the exception says that memory ran out."""


@dataclass(kw_only=True)
class Receipt:
    """One process; sizes in bytes."""

    pid: int
    argv: list[str]
    began_ns: int
    """Value of ``time.time_ns()`` when torch had been imported."""
    interpreter: str
    """Python of the process (``sys.executable``)."""
    torch_version: str
    cuda_version: str | None
    """CUDA version that torch was built with; None for a build without CUDA."""
    rank: int | None = None
    """Rank of the process, from a launcher or ``init_process_group``; None for a process without one."""
    world_size: int | None = None
    """Ranks of its world, from the same source; None for a process without a world."""
    state: State = "running"
    unfit: str = ""
    """Reason why this process cannot have the card; empty where it can."""
    defect: str = ""
    """Reason why oomscope could not begin to measure this process; empty where it could."""
    raised: Raised | None = None
    is_cuda_initialised: bool = False
    devices: int | None = None
    """Cards that torch counts; None where CUDA was not initialised, since counting would initialise it."""
    device: int | None = None
    """Card to report: the one that ran out of memory, else the one with most reserved bytes."""
    card_peaks: list[int] = field(default_factory=list)
    """Most reserved bytes of each card."""
    most_held: list[int] = field(default_factory=list)
    """Most bytes that all processes together held of each virtual card; empty for real ones."""
    visible_cards: str = ""
    """Value of ``CUDA_VISIBLE_DEVICES``: the process sees these cards, under numbers of its own."""
    budget: dict[str, Any] | None = None
    """Budget of the process on a real card (:class:`oomscope.probe.measurement.DeviceBudget` as JSON)."""
    fraction: float = 1.0
    """The memory fraction that the program set; 1 for none."""
    versions: dict[str, str] = field(default_factory=dict)
    """The card's capability; of a real card name and driver as well."""
    iterations: int = 0
    """Steps of the optimizer that stepped first."""
    steps: int = 0
    """Steps of all optimizers."""
    optimizers: int = 0
    """Optimizers that were made."""
    unstepped: int = 0
    """Optimizers with parameters to train on the card that had not stepped when the program was ended."""
    backwards: int = 0
    """Backward passes that were begun."""
    parameters_on_cpu: int = 0
    parameters_on_card: int = 0
    refused: Refused | None = None
    """The last request that the caching allocator refused."""
    went_on: bool = False
    """Whether a step or a model's forward was completed after the last refusal."""
    stats: dict[str, int] = field(default_factory=dict)
    """``torch.cuda.memory_stats`` of the card; peaks that the program reset count as well."""
    workspaces: list[int] = field(default_factory=list)
    """Sizes that workspaces of cuBLAS have on the card."""
    pinned_bytes: int = 0
    """Peak of pinned host memory."""
    growing: list[str] = field(default_factory=list)
    """Lists and dictionaries that held more tensors after each of the last iterations, by name."""
    snapshot: str = ""
    """The file of the last snapshot; empty where none was written."""
    from_checkout: str = ""
    """A module of the user's checkout that it imported though it runs in a clone, with its file; empty for none."""
    unanswered: dict[str, Any] = field(default_factory=dict)
    """What a virtual card could not answer (:class:`oomscope.probe.measurement.Unanswered` as JSON)."""
    saved: list[str] = field(default_factory=list)
    """Files that it saved since it used a virtual card, by ``torch.save`` or safetensors."""
    notes: list[str] = field(default_factory=list)

    def peak_of(self, card: str) -> int:
        """Return the most that was reserved of a card, by its name."""
        return sum(peak for index, peak in enumerate(self.card_peaks) if self.name_of(index) == card)

    def most_held_of(self, card: str) -> int:
        """Return the most that all processes held of a card, by its name, while this one ran."""
        return max((most for index, most in enumerate(self.most_held) if self.name_of(index) == card), default=0)

    def name_of(self, index: int) -> str:
        """Return by what name all processes know the card with this ``index``."""
        names = [name.strip() for name in self.visible_cards.split(",") if name.strip()]
        return names[index] if index < len(names) else str(index)

    @property
    def ran_out(self) -> bool:
        """Whether memory is what ended this process: its last refusal left it with nothing done, or it raised it."""
        if self.state == "stopped":
            return False
        raised = self.raised is not None and self.raised.refusal is not None
        return raised or (self.refused is not None and not self.went_on)

    @property
    def as_last_known(self) -> Self:
        """This receipt; if its process was killed after a refusal, with what was kept at the refusal."""
        if self.snapshot or self.refused is None or not self.ran_out:
            return self
        then = self.refused
        return replace(self, device=then.device, snapshot=then.snapshot, stats=then.stats)

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the receipt of a process that is only known to import torch."""
        version = sys.modules.get("torch.version")
        return cls(
            pid=os.getpid(),
            argv=list(sys.orig_argv),
            began_ns=time.time_ns(),
            interpreter=sys.executable,
            torch_version=str(getattr(version, "__version__", "")),
            cuda_version=getattr(version, "cuda", None),
            rank=_number("RANK"),
            world_size=_number("WORLD_SIZE"),
        )

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Read back what :meth:`write` wrote."""
        raised, refused = document["raised"], document["refused"]
        parts = {"raised": raised and Raised(**raised), "refused": refused and Refused(**refused)}
        return cls(**document | parts)

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated on the card."""
        return self.stats.get("allocated_bytes.all.peak", 0)

    def write(self, path: Path) -> None:
        """Write the receipt, in place of an earlier one, whole or not at all."""
        unfinished = path.with_name(f".{secrets.token_hex(8)}.part")
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.replace(path)


def _number(variable: str) -> int | None:
    """Return the number that a launcher such as torchrun sets in an environment variable; None without one."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def path_of(folder: Path, pid: int) -> Path:
    """Return a free name for the receipt of process ``pid``; numbers of processes come again."""
    return folder / f"{pid}-{secrets.token_hex(4)}{SUFFIX}"


def read_receipts(folder: Path) -> list[Receipt]:
    """Return the receipts in ``folder``, those of older processes first."""
    found = (Receipt.from_json(json.loads(path.read_text())) for path in folder.glob(f"*{SUFFIX}"))
    return sorted(found, key=lambda receipt: receipt.began_ns)
