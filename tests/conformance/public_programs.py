"""The programs behind public snapshots: where they are, and how a snapshot's file name tells what was run.

A snapshot says neither on which card it was recorded, nor with which flags, nor by which torch. What the repository
does not say either is chosen by what the trace shows, once for each program where nothing else is said here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Named = Mapping[str, str]
"""What the groups of :attr:`PublicProgram.names` matched."""


@dataclass(frozen=True, kw_only=True)
class PublicProgram:
    """A program that others recorded."""

    repository: str
    commit: str
    torch: str
    """What the repository pins."""
    names: re.Pattern[str]
    """Snapshot files that it recorded."""
    script: str
    folders: tuple[str, ...]
    """Where the script finds its modules, relative to the checkout."""
    gpu: str
    """The card to play; no repository names its card."""
    arguments: Callable[[Named], tuple[str, ...]] = lambda _named: ()
    edits: tuple[tuple[str, str], ...] = ()


SIZES = {"medium": {"d_model": "1024", "d_ff": "4096", "num_layers": "24", "num_heads": "16"}}
"""``CONFIGS`` of scripts/run_profile_configs.sh."""


MIXED_PRECISION = {("512", "inference"), ("512", "training"), ("1024", "training")}
"""Context length and mode of the files that were recorded under autocast. Their names do not say so, their traces do:
layers take half the bytes of float32."""


def _nsys_profile(named: Named) -> tuple[str, ...]:
    trains = named["mode"] == "training"
    flags = SIZES[named["size"]] | {
        "context_length": named["context"],
        "model_name": named["size"],
        "memory-profile": "true",
        "autocast": "true" if (named["context"], named["mode"]) in MIXED_PRECISION else "false",
        "pattern": "full-training-step" if trains else "forward-only",
    }
    return tuple(f"--{flag}={value}" for flag, value in flags.items())


def _benchmark(named: Named) -> tuple[str, ...]:
    """Return the flags that scripts/run_memory_profile.py gives."""
    flags = {
        "context-length": named["context"],
        "d-model": "768",
        "num-layers": "12",
        "num-heads": "12",
        "d-ff": "3072",
        "batch-size": "4",
    }
    return ("--profile-memory", *(f"--{flag}={value}" for flag, value in flags.items()))


PROGRAMS = (
    PublicProgram(
        repository="Wedsonlin/assignment2-systems",
        commit="8630bcf",
        torch="2.11.0",
        names=re.compile(r"(?P<size>medium)_(?P<context>\d+)_(?P<mode>training|inference)_memory_snapshot"),
        script="cs336_systems/nsys_profile.py",
        folders=("cs336-basics",),
        gpu="a100-80gb",  # a workspace of 8.125 MiB for cuBLAS: older than Hopper
        arguments=_nsys_profile,
        edits=(('{model.config["context_length"]}', "{model.config['context_length']}"),),  # Python 3.12
    ),
    PublicProgram(
        repository="MAGMA27/assignment2-systems",
        commit="15883f2",
        torch="2.11.0",
        names=re.compile(r"^(?:magma\w*|memory_snapshot)\.pickle$"),
        script="cs336_systems/benchmarking_script.py",
        folders=("cs336-basics",),
        gpu="rtx4090",
    ),
    PublicProgram(
        repository="xiaolin2004/assignment2-systems",
        commit="c8087c4",
        torch="2.6.0",
        names=re.compile(r"forward_only_(?P<context>\d+)_fp32"),
        script="scripts/benchmark.py",
        folders=(".",),
        gpu="rtx4090",
        arguments=_benchmark,
    ),
)


def program_of(file_name: str) -> tuple[PublicProgram, Named] | None:
    """Return the program that recorded a snapshot file, and what the name says; None where none is known."""
    for program in PROGRAMS:
        if (match := program.names.search(file_name)) is not None:
            return program, match.groupdict()
    return None
