"""Hold oomscope's cures against programs that fail by fragmentation, on the real allocator of a virtual card.

    python benchmarks/fragmentation                  # 200 programs, some 20 minutes on 2 cores
    python benchmarks/fragmentation --programs 10

Each generated program gets a card on which it fails although no more is requested than there is. It is probed, and
every cure that the verdict claims is run again in another process: the first in a new interpreter without oomscope's
probe, the others in forks. Then every setting of a list that is longer than oomscope's own is run, to see which
programs could have been cured. The exit status is 1 where a claimed cure fails, or where fewer than 90 % of the
programs that can be cured have one claimed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import runs

from oomscope.snapshot.verdict_types import FixTried, Verdict
from oomscope.units import format_size

if TYPE_CHECKING:
    from search import Case

WANTED_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program."""

    case: Case
    verdict: Verdict
    failing: tuple[str, ...]
    """Claimed cures that fail when they are run again."""
    curing: dict[str, runs.Run]
    """What the exhaustive search found."""
    seconds: float
    """What the probe took."""

    @property
    def only_replayed(self) -> list[FixTried]:
        """Settings that pass in the replay and fail in the run: without runs they would have been claimed."""
        return [row for row in self.verdict.tried if row.how == "run" and "replay passes" in row.note]


def examine(case: Case) -> Row:
    """Probe a program, run again what is claimed, and search for what could have been."""
    from claims import probe
    from search import cures

    began = time.monotonic()
    verdict = probe(case)
    seconds = time.monotonic() - began
    confs = {row.name: row.conf for row in verdict.tried}
    again = (runs.run_fresh if index == 0 else runs.run for index in range(len(verdict.cured_by)))
    failing = tuple(
        name
        for name, run in zip(verdict.cured_by, again, strict=True)
        if run(case.name, available_bytes=case.available_bytes, conf=confs[name]).failed
    )
    return Row(case=case, verdict=verdict, failing=failing, curing=cures(case), seconds=seconds)


def line(row: Row) -> str:
    """Return one program as a line."""
    claimed = row.verdict.cured_by[0] if row.verdict.cured_by else "-"
    preferred = row.verdict.preferred
    room = format_size(preferred.margin_bytes) + (" tight" if preferred.is_tight else "") if preferred else ""
    found = f"{len(row.curing)} cure it"
    fails = f"  FAILS AGAIN: {', '.join(row.failing)}" if row.failing else ""
    memory = format_size(row.case.available_bytes)
    return f"{row.case.name:24} {memory:>10}  {row.verdict.kind:13} {found:10} {claimed} {room}{fails}"


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield what came out."""
    fragmented = [row for row in rows if row.verdict.kind == "fragmentation"]
    claims = sum(len(row.verdict.cured_by) for row in rows)
    curable = [row for row in rows if row.curing]
    claimed = [row for row in curable if row.verdict.cured_by]
    tight = [row for row in claimed if row.verdict.preferred and row.verdict.preferred.is_tight]
    replayed = [row for row in rows if row.only_replayed]
    missed = sum(bool(row.verdict.cured_by) and not row.curing for row in rows)
    seconds = sorted(row.seconds for row in rows)
    middle, longest = seconds[len(seconds) // 2], seconds[-1]
    yield f"programs                                                   {len(rows)}"
    yield f"judged to fail by fragmentation                            {len(fragmented)}"
    yield f"claimed cures, over all programs                           {claims}"
    yield f"claimed cures that fail when run again                     {sum(len(row.failing) for row in rows)}"
    yield f"programs that a setting of the exhaustive list cures       {len(curable)}"
    yield f"  of these with a claimed cure                             {len(claimed)} ({share(rows):.1%})"
    yield f"  of these with a tight one at best                        {len(tight)}"
    yield f"programs with a claimed cure that the list does not hold   {missed}"
    yield f"programs with a setting that passes in the replay alone    {len(replayed)}"
    yield f"seconds of a probe, median and longest                     {middle:.1f}, {longest:.1f}"


def share(rows: list[Row]) -> float:
    """Return for which share of the programs that can be cured one is claimed."""
    curable = [row for row in rows if row.curing]
    return sum(bool(row.verdict.cured_by) for row in curable) / len(curable) if curable else 1.0


def main() -> int:
    """Examine the programs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200, metavar="N")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N")
    parser.add_argument("--family", action="append", default=[], metavar="NAME", help="a pattern of programs.py (all)")
    arguments = parser.parse_args()
    runs.warm_up()
    from search import SETTINGS, cases  # imports torch, before which the card is loaded

    rows = []
    for case in cases(arguments.programs, arguments.first_seed, arguments.family):
        rows.append(examine(case))
        print(line(rows[-1]), flush=True)
    print(
        "\n".join(["", f"settings of the exhaustive list                            {len(SETTINGS)}", *summary(rows)])
    )
    return int(any(row.failing for row in rows) or share(rows) < WANTED_SHARE)


if __name__ == "__main__":
    sys.exit(main())
