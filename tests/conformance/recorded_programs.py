"""Run the programs behind public snapshots on the virtual card, and compare every event.

    python tests/conformance/recorded_programs.py --checkout FOLDER SNAPSHOT... [--gpu NAME] [--policy NAME]...

FOLDER is a checkout of the repository and commit that recorded the SNAPSHOTs (``public_programs.py`` lists them); their
names tell what was run. A line a snapshot: the events recorded, how many of them are identical (same action, same size,
same place in the order), the first that differs, and the reserved bytes at the end, recorded and measured, with the
policy of addresses under which they are equal, or nearest: up to torch 2.11 addresses decide between free blocks of one
size, and which addresses a driver gave is not known. The exit code is 0 only where every event is identical and
reserved bytes are within 0.5 %.

It needs torch 2.11 (the rows say which torch recorded), and einops, einx 0.3.0 and jaxtyping on the path.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from oomscope.errors import OomscopeError, UsageError  # noqa: E402
from oomscope.snapshot.read.load import load_snapshot  # noqa: E402
from oomscope.snapshot.trace import Action, Snapshot  # noqa: E402
from oomscope.virtual.cards import find_card  # noqa: E402
from oomscope.virtual.settings import AddressPolicy, CardSettings  # noqa: E402
from tests.conformance.program_on_card import ProgramRun  # noqa: E402
from tests.conformance.public_programs import Named, PublicProgram, program_of  # noqa: E402

RUNNER = Path(__file__).with_name("program_on_card.py")
POLICIES: tuple[AddressPolicy, ...] = get_args(AddressPolicy)
RESERVED_TOLERANCE = 0.005


class Event(NamedTuple):
    """What is compared of an event."""

    action: Action
    size: int

    def __str__(self) -> str:
        return f"{self.action.name.lower()} {self.size:,}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A recorded snapshot beside what the same program did on the virtual card."""

    recorded: int
    """Events."""
    measured: int
    identical: int
    """Events at the same place of both with the same action and size."""
    first_difference: str
    """Empty where there is none."""
    reserved_recorded: int
    """Bytes of all segments at the end."""
    reserved_measured: int

    @property
    def reserved_error(self) -> float:
        """Relative to what was recorded."""
        return self.reserved_measured / self.reserved_recorded - 1

    @property
    def holds(self) -> bool:
        """Whether every event is identical and reserved bytes are near enough."""
        same = self.identical == self.recorded == self.measured
        off = abs(self.reserved_measured - self.reserved_recorded)
        return same and off <= RESERVED_TOLERANCE * self.reserved_recorded


def events_of(snapshot: Snapshot) -> list[Event]:
    """Return the events of the first device that recorded any."""
    trace = next((trace for trace in snapshot.traces if len(trace)), None)
    if trace is None:
        return []
    return [Event(Action(int(action)), int(size)) for action, size in zip(trace.action, trace.size, strict=True)]


def first_difference(recorded: Sequence[Event], measured: Sequence[Event]) -> str:
    """Return the first place at which two traces differ, in words; empty where they do not."""
    for place, (ours, theirs) in enumerate(zip(measured, recorded, strict=False)):
        if ours != theirs:
            return f"event {place:,}: recorded {theirs}, measured {ours}"
    if len(recorded) != len(measured):
        longer = "recorded" if len(recorded) > len(measured) else "measured"
        place = min(len(recorded), len(measured))
        return f"event {place:,}: {longer} only, {max(recorded, measured, key=len)[place]}"
    return ""


def compare(recorded: Snapshot, measured: Snapshot) -> Comparison:
    """Compare two snapshots of one program."""
    theirs, ours = events_of(recorded), events_of(measured)
    return Comparison(
        recorded=len(theirs),
        measured=len(ours),
        identical=sum(one == other for one, other in zip(theirs, ours, strict=False)),
        first_difference=first_difference(theirs, ours),
        reserved_recorded=sum(segment.total_size for segment in recorded.segments),
        reserved_measured=sum(segment.total_size for segment in measured.segments),
    )


def run_program(
    program: PublicProgram, named: Named, checkout: Path, *, policy: AddressPolicy, gpu: str | None = None
) -> Snapshot:
    """Run a program on the virtual card and return its snapshot.

    Raises:
        OomscopeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "snapshot.pickle")
        job = ProgramRun(
            script=str(checkout / program.script),
            arguments=program.arguments(named),
            edits=program.edits,
            folders=tuple(str(checkout / part) for part in program.folders),
            snapshot=str(snapshot),
        )
        card = CardSettings(card=find_card(gpu or program.gpu), address_policy=policy)
        done = subprocess.run(
            [sys.executable, str(RUNNER)],
            input=job.to_json(),
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=os.environ | card.variables(),
        )
        if done.returncode != 0:
            raise OomscopeError(f"{program.script} failed:\n{done.stderr[-2000:]}")
        return load_snapshot(snapshot)


def best_policy(
    recorded: Snapshot,
    program: PublicProgram,
    named: Named,
    checkout: Path,
    policies: Sequence[AddressPolicy],
    gpu: str | None = None,
) -> tuple[AddressPolicy, Comparison]:
    """Return the first policy with equal reserved bytes, else the one with the nearest."""
    found: list[tuple[AddressPolicy, Comparison]] = []
    for policy in policies:
        measured = run_program(program, named, checkout, policy=policy, gpu=gpu)
        found.append((policy, compare(recorded, measured)))
        if not found[-1][1].reserved_error:
            break
    return min(found, key=lambda pair: abs(pair[1].reserved_error))


def line_of(name: str, policy: AddressPolicy, comparison: Comparison) -> str:
    """Return the line of a snapshot."""
    equal = "equal" if not comparison.reserved_error else f"{comparison.reserved_error:+.2%}"
    return (
        f"{'ok ' if comparison.holds else 'OFF'} {name}: {comparison.identical:,} of {comparison.recorded:,} events "
        f"identical; first difference: {comparison.first_difference or 'none'}; reserved "
        f"{comparison.reserved_recorded:,} recorded, {comparison.reserved_measured:,} measured ({equal}, {policy})"
    )


def main(argv: Sequence[str]) -> int:
    """Print a line a snapshot; return 0 only where all hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--gpu", metavar="NAME", help="another card than the one that the program's row names")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only these orders of addresses")
    parser.add_argument("snapshots", type=Path, nargs="+", metavar="SNAPSHOT")
    options = parser.parse_args(argv)
    held = 0
    for path in options.snapshots:
        try:
            found = program_of(path.name)
            if found is None:
                raise UsageError("no known program recorded it", where=str(path), remedy="see public_programs.py")
            policy, comparison = best_policy(
                load_snapshot(path), *found, options.checkout.resolve(), options.policy or POLICIES, options.gpu
            )
        except OomscopeError as error:
            print(f"none {path.name}: {error}", flush=True)
            continue
        held += comparison.holds
        print(line_of(path.name, policy, comparison), flush=True)
    print(f"{held} of {len(options.snapshots)} snapshots hold")
    return 0 if held == len(options.snapshots) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
