"""Find the card on which a program fails by fragmentation, and every setting of a long list that cures it there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from programs import FAMILIES, MIB
from runs import Run, run

TRIES = 10
"""Sizes of cards that are tried for a program before it is given up."""
SETTINGS = (
    "expandable_segments:True",
    *(f"expandable_segments:True,large_segment_size_mb:{size}" for size in (12, 14, 16, 18, 32, 64)),
    *(f"expandable_segments:True,roundup_power2_divisions:{number}" for number in (4, 8, 16, 32)),
    *(f"max_split_size_mb:{size}" for size in (20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)),
    *(f"max_split_size_mb:{size},large_segment_size_mb:12" for size in (20, 64, 256)),
    *(f"roundup_power2_divisions:{number}" for number in (1, 2, 4, 8, 16, 32)),
    *(f"large_segment_size_mb:{size}" for size in (12, 16, 32, 64, 128, 256)),
    *(
        f"max_split_size_mb:{size},roundup_power2_divisions:{number}"
        for size, number in itertools.product((32, 64, 128, 256, 512), (4, 8, 16))
    ),
    *(
        f"max_split_size_mb:{size},max_non_split_rounding_mb:{rest}"
        for size, rest in itertools.product((64, 256), (64, 512))
    ),
    *(f"per_process_memory_fraction:0.999,garbage_collection_threshold:{part}" for part in (0.6, 0.8)),
)
"""What an exhaustive search runs: chosen apart from the candidates of oomscope, and more of them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, and the memory on which the allocator fails although no more is requested than there is."""

    name: str
    available_bytes: int
    """D, which the allocator may hold."""
    whole: Run
    """The same program with memory to spare."""


def cases(count: int, first_seed: int = 0, families: Sequence[str] = ()) -> Iterator[Case]:
    """Yield ``count`` programs that fail by fragmentation: one of each family in turn, from ``first_seed`` on.

    Seeds whose program never fails so are passed over.
    """
    found = 0
    for seed in itertools.count(first_seed):
        for family in families or FAMILIES:
            case = fragmenting(f"{family}:{seed}") if found < count else None
            if case:
                found += 1
                yield case
        if found >= count:
            return


def fragmenting(name: str) -> Case | None:
    """Return the program with memory between its requested peak and what it reserves without a limit.

    The place between both is drawn from the name, and moved towards the requested peak until the program fails. None
    where it never does.
    """
    whole = run(name)
    rng = random.Random(f"memory of {name}")  # noqa: S311 - sizes, not secrets
    part = rng.random()
    for _ in range(TRIES):
        between = int(part * (whole.reserved_bytes - whole.requested_bytes))
        available = -(-(whole.requested_bytes + between) // (2 * MIB)) * 2 * MIB
        if run(name, available_bytes=available).failed:
            return Case(name=name, available_bytes=available, whole=whole)
        part *= 0.7
    return None


def cures(case: Case) -> dict[str, Run]:
    """Return the settings of :data:`SETTINGS` under which the program runs to its end, with those runs."""
    runs = {conf: run(case.name, available_bytes=case.available_bytes, conf=conf) for conf in SETTINGS}
    return {conf: each for conf, each in runs.items() if not each.failed}
