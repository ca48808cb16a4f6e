"""Probe what Megatron-LM's own CI ran and compare the bytes: one row a case and card.

    python tests/conformance/megatron_ci.py FILE [--only TEXT] [--world-size N]

FILE is a list of cases, each with the launcher's ``arguments`` and ``rows`` of what was logged on one kind of machine:
``alloc_last`` is ``allocated_bytes.all.current`` after the last step and ``max_last`` its running maximum, both of the
last rank. The same rank is probed as ``oomscope probe --from megatron`` does. The exit code is 0 only where every peak
is within 1 % and every steady state within 1 % or 16 MiB.

The virtual card needs a torch of the recordings' time (``make test-torch VERSION=2.13.0``, then its Python): from 2.15
on torch frees the workspaces of cuBLAS, some 64 MiB here, after use.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oomscope.config.importers.command_lines import read_arguments
from oomscope.config.importers.load import load_arguments
from oomscope.config.schema import Config
from oomscope.errors import OomscopeError
from oomscope.probe.job import bundled_job
from oomscope.probe.process.warm import run
from oomscope.probe.ranks import chosen_ranks
from oomscope.units import MiB

GPUS_OF_A_MACHINE = 8
PEAK_TOLERANCE = 0.01
STATE_TOLERANCE = 0.01
STATE_SLACK = 16 * MiB


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the CI ran on one kind of machine, and what it logged."""

    name: str
    arguments: Mapping[str, str]
    gpu: str
    cards: int = GPUS_OF_A_MACHINE
    """The world, where the case says so; else the machine."""
    state_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case beside what the probe says of it."""

    case: Case
    state_bytes: int
    peak_bytes: int

    @property
    def state_error(self) -> float:
        """Relative to what was measured."""
        return self.state_bytes / self.case.state_bytes - 1

    @property
    def peak_error(self) -> float:
        """Relative to what was measured."""
        return self.peak_bytes / self.case.peak_bytes - 1

    @property
    def holds(self) -> bool:
        """Whether both numbers are as near as they have to be."""
        case = self.case
        state_off, peak_off = abs(self.state_bytes - case.state_bytes), abs(self.peak_bytes - case.peak_bytes)
        state_holds = state_off <= max(STATE_SLACK, STATE_TOLERANCE * case.state_bytes)
        return state_holds and peak_off <= PEAK_TOLERANCE * case.peak_bytes


def cases(path: Path) -> Iterator[Case]:
    """Yield every case of a file on every card that it was recorded on."""
    for document in json.loads(path.read_text()):
        for row in document["rows"]:
            yield Case(
                name=document["case"],
                arguments=document["arguments"],
                gpu="h100-80gb" if "H100" in row["env"].upper() else "a100-80gb",
                state_bytes=row["alloc_last"],
                peak_bytes=row["max_last"],
                cards=document.get("cards", GPUS_OF_A_MACHINE),
            )


def config_of(arguments: Mapping[str, str], world_size: int = GPUS_OF_A_MACHINE) -> Config:
    """Return what the launcher's arguments mean on the CI's machine, or on as many of its cards as are given.

    A case that trained for one step, whose moments were made after its peak, is probed for one.

    Raises:
        InvalidConfigError: an argument is not modelled, or breaks a rule.
    """
    given = read_arguments(json.dumps(arguments), "model_config.yaml")
    given.world_size = world_size
    steps = ("probe.iterations=1",) if arguments.get("--train-iters") == "1" else ()
    return load_arguments(given, "megatron", steps).config


def probe(case: Case, world_size: int | None = None) -> Outcome:
    """Probe the last rank of a case, in another world than the case's if one is given.

    Raises:
        OomscopeError: the arguments cannot be imported, or nothing was measured.
    """
    config = config_of(case.arguments, world_size or case.cards)
    (rank,) = chosen_ranks("last", config)
    result = run(replace(bundled_job(config, rank=rank), backend="virtual", gpu=case.gpu))
    if result.outcome != "fits" or result.peak is None or result.end_allocated_bytes is None:
        raise OomscopeError(result.failure.message if result.failure else f"the probe ends with {result.outcome}")
    return Outcome(case=case, state_bytes=result.end_allocated_bytes, peak_bytes=result.peak.allocated_bytes)


HEADINGS = ("", "state MiB", "probed", "error", "peak MiB", "probed", "error", "case")
LINE = "{:<4} {:>10} {:>10} {:>8}  {:>10} {:>10} {:>8}  {}"


def line_of(outcome: Outcome) -> str:
    """Return the row of the table."""
    case = outcome.case
    return LINE.format(
        "ok" if outcome.holds else "OFF",
        *(f"{size / MiB:.1f}" for size in (case.state_bytes, outcome.state_bytes)),
        f"{outcome.state_error:+.2%}",
        *(f"{size / MiB:.1f}" for size in (case.peak_bytes, outcome.peak_bytes)),
        f"{outcome.peak_error:+.2%}",
        f"{case.name} {case.gpu}",
    )


def main(argv: Sequence[str]) -> int:
    """Print the table of a file; return 0 only where every row holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="cards, where no file says how many more than one machine has"
    )
    options = parser.parse_args(argv)
    print(LINE.format(*HEADINGS))
    total = held = 0
    for case in cases(options.file):
        if options.only not in case.name:
            continue
        total += 1
        try:
            outcome = probe(case, options.world_size)
        except OomscopeError as error:
            print(f"none {case.name} {case.gpu}: {error}", flush=True)
            continue
        held += outcome.holds
        print(line_of(outcome), flush=True)
    print(f"{held} of {total} rows hold")
    return 0 if total and held == total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
