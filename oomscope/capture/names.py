"""Names of snapshots: a template such as ``snap-{rank}.pickle``, filled in when a file is written.

The rank is looked up then, since a program may join its process group long after recording began. A name that is
taken gets a number, so that no evidence is ever written over.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import socket
import string
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Final

from oomscope.errors import InputError

FIELDS: Final = ("rank", "time", "host", "pid")
RANK_VARIABLES: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
"""Variables with the rank: of torchrun, srun, mpirun (Open MPI, MPICH), then the local one of any launcher."""
WORLD_VARIABLES: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
PACKED: Final = (".gz", ".zst")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")


def check(template: str) -> None:
    """Refuse what is no template.

    Raises:
        InputError: it names no file, has an unknown field, or a brace too few.
    """
    remedy = "use the fields " + ", ".join(f"{{{field}}}" for field in FIELDS)
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"not a template ({error})", where=template, remedy=remedy) from None
    for _, field, form, conversion in parts:
        if field is not None and (field not in FIELDS or form or conversion):
            raise InputError(f"unknown field {{{field}}}", where=template, remedy=remedy)
    if template.endswith(("/", "..")) or not Path(template).name:
        raise InputError("names no file", where=template or "path", remedy="give a name such as snap-{rank}.pickle")


def anchored(template: str) -> str:
    """Return ``template`` as an absolute one, for the program may change its folder before a snapshot is written."""
    expanded = os.path.expanduser(template)  # noqa: PTH111 - pathlib would need the fields filled in
    here = str(Path.cwd()).replace("{", "{{").replace("}", "}}")
    return str(Path(here) / expanded)


def fill(template: str, *, rank: str, time: datetime) -> Path:
    """Return the path that ``template`` stands for in this process."""
    values = {"rank": rank, "time": stamp(time), "host": socket.gethostname(), "pid": str(os.getpid())}
    return Path(template.format(**values))


def fill_time(template: str, time: datetime) -> str:
    """Return ``template`` with only its time filled in, so that all processes of a job share it."""
    return template.replace("{time}", stamp(time))


def stamp(time: datetime) -> str:
    """Return ``time`` as part of a file's name: ``20260102T030405``."""
    return time.strftime("%Y%m%dT%H%M%S")


def tagged(path: Path, tag: str) -> Path:
    """Return ``path`` with ``tag`` before its ending: ``snap-0.oom.pickle.gz``."""
    packing = path.suffix if path.suffix in PACKED else ""
    bare = path.with_suffix("") if packing else path
    return bare.with_name(f"{bare.stem}.{_UNFIT.sub('_', tag)}{bare.suffix}{packing}")


def free_names(path: Path) -> Iterator[Path]:
    """Yield ``path``, and ``snap-0.2.pickle``, ``snap-0.3.pickle`` …, as far as they are free."""
    numbered = (tagged(path, str(number)) for number in itertools.count(2))
    yield from (name for name in itertools.chain([path], numbered) if not name.exists())


def rank_of_process(environment: Mapping[str, str]) -> int | None:
    """Return this process's rank; None if neither its process group nor its launcher defines it."""
    distributed = _process_group()
    return int(distributed.get_rank()) if distributed else _first(environment, RANK_VARIABLES)


def world_size_of_process(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks there are, from the same sources."""
    distributed = _process_group()
    return int(distributed.get_world_size()) if distributed else _first(environment, WORLD_VARIABLES)


def stand_in_rank() -> str:
    """Return the default rank: ``0``, or ``p<pid>`` in a child process."""
    return f"p{os.getpid()}" if multiprocessing.parent_process() is not None else "0"


def _process_group() -> ModuleType | None:
    """Return ``torch.distributed`` where it is in use; a program that never imported it is not made to."""
    distributed = sys.modules.get("torch.distributed")
    in_use = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if in_use else None


def _first(environment: Mapping[str, str], variables: tuple[str, ...]) -> int | None:
    return next((int(environment[name]) for name in variables if environment.get(name, "").isdecimal()), None)
