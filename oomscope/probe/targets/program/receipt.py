"""What a process of a started program says of itself: a small JSON file, written anew whenever it knows more.

The first one is written when torch has been imported, so that a program that never does is told from one whose
processes died. The last one says how the process ended, and where its snapshot lies.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

SUFFIX: Final = ".receipt.json"
State = Literal["running", "stopped", "ended"]
"""``running``: it has not said anything later, or was killed. ``stopped``: the probe ended it, having seen enough.
``ended``: it came to its own end."""


@dataclass(kw_only=True)
class Refused:
    """A request that the caching allocator refused, as torch told its observer; bytes."""

    device: int
    requested_bytes: int
    allowed_bytes: int
    free_bytes: int
    moment: list[Any]
    """Phase, iteration and microbatch."""
    held_bytes: int
    """What this process held of a virtual card; 0 on a real one, which is not asked."""
    snapshot: str
    """The file of the snapshot that was taken at that instant; empty where it could not be written."""


@dataclass(kw_only=True)
class Raised:
    """What left the program's main module: an exception that nobody caught."""

    text: str
    """Class, message and place, in one line."""
    details: str
    """The whole traceback."""
    refusal: dict[str, Any] | None = None
    """Who refused memory (``analysis.failures.Refusal`` as JSON), where it says that memory ran out."""


@dataclass(kw_only=True)
class Receipt:
    """One process; sizes in bytes."""

    pid: int
    parent: int
    argv: list[str]
    began_ns: int
    """``time.time_ns()`` when torch had been imported."""
    torch_version: str
    cuda_version: str | None
    """What torch was built with; None for a build without CUDA."""
    rank: int | None = None
    """Its rank, as a launcher or ``init_process_group`` told it; None for a process without one."""
    world_size: int | None = None
    """Ranks of its world, as told by the same; None likewise."""
    state: State = "running"
    how: str = ""
    """How it ended, in a few words: ``exit``, ``os._exit(3)``."""
    unfit: str = ""
    """Why the card cannot be had in this process; empty where it can."""
    raised: Raised | None = None
    is_cuda_initialised: bool = False
    devices: int | None = None
    """Cards that torch counts; None where CUDA was not initialised, since counting would begin to."""
    device: int | None = None
    """The card on which most was allocated."""
    budget: dict[str, Any] | None = None
    """Of a real card: what the process may use (:class:`oomscope.probe.measurement.DeviceBudget` as JSON)."""
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
    backwards: int = 0
    """Backward passes that were begun."""
    parameters_on_cpu: int = 0
    parameters_on_card: int = 0
    refusals: int = 0
    """Requests that the caching allocator refused."""
    refused: Refused | None = None
    """The last of them."""
    went_on: bool = False
    """Whether a step or a model's forward was completed after the last refusal."""
    stats: dict[str, int] = field(default_factory=dict)
    """``torch.cuda.memory_stats`` of the card, where peaks count that the program reset."""
    workspaces: list[int] = field(default_factory=list)
    """Sizes that workspaces of cuBLAS have on the card."""
    pinned_bytes: int = 0
    """Peak of pinned host memory."""
    snapshot: str = ""
    """The file of the last snapshot; empty where none was written."""
    unanswered: dict[str, Any] = field(default_factory=dict)
    """What a virtual card could not answer (:class:`oomscope.probe.measurement.Unanswered` as JSON)."""
    allocator_conf: str = ""
    """The allocator's variable when CUDA was initialised."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the receipt of a process of which no more is known than that it imports torch."""
        version = sys.modules.get("torch.version")
        return cls(
            pid=os.getpid(),
            parent=os.getppid(),
            argv=list(sys.orig_argv),
            began_ns=time.time_ns(),
            torch_version=str(getattr(version, "__version__", "")),
            cuda_version=getattr(version, "cuda", None),
            rank=_number("RANK"),
            world_size=_number("WORLD_SIZE"),
        )

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated on the card."""
        return self.stats.get("allocated_bytes.all.peak", 0)

    def write(self, path: Path) -> None:
        """Write the receipt, in place of an earlier one; nobody ever reads half of it."""
        unfinished = path.with_name(f".{secrets.token_hex(8)}.part")
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.replace(path)


def _number(variable: str) -> int | None:
    """Return what a launcher such as torchrun says in an environment variable; None where it says nothing."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def path_of(folder: Path, pid: int) -> Path:
    """Return a free name for the receipt of process ``pid``; numbers of processes come again."""
    return folder / f"{pid}-{secrets.token_hex(4)}{SUFFIX}"


def read_receipts(folder: Path) -> list[Receipt]:
    """Return the receipts in ``folder``, those of older processes first."""
    return sorted(map(_read, folder.glob(f"*{SUFFIX}")), key=lambda receipt: receipt.began_ns)


def _read(path: Path) -> Receipt:
    fields = json.loads(path.read_text())
    fields["raised"] = Raised(**fields["raised"]) if fields["raised"] else None
    fields["refused"] = Refused(**fields["refused"]) if fields["refused"] else None
    return Receipt(**fields)
