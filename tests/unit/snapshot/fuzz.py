"""Read damaged snapshots by the thousand: each must load or be refused, and nothing else may happen.

    python tests/unit/snapshot/fuzz.py --count 20000 --commands fixtures/snapshots/*.* ../shared/data/snapshots/*

A worker does what the reading process does (``child.answer``, with its limits on memory and time), then what a command
does with the answer; with ``--commands`` all that ``explain``, ``replay`` and ``diff`` do, and their printers. It reads
many files, each damaged in one to four places, so a mutation costs milliseconds. Where one ends the worker, as it may
end a reading process, the next worker goes on behind it; the number of such ends is told, and any exception but a
refusal is a failure. A mutation is named by its number: the same numbers give the same bytes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import io
import json
import random
import resource
import signal
import struct
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import zstandard

from oomscope.errors import OomscopeError
from oomscope.report.diff import diff_report
from oomscope.report.explain import explain_report
from oomscope.report.parts import Report
from oomscope.report.replay import replay_report
from oomscope.report.text.console import result_console, show
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.explain.explain import explain
from oomscope.snapshot.read.build_snapshot import snapshot_from
from oomscope.snapshot.read.child import answer
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.tables import Tables
from oomscope.snapshot.replay.replay_table import replay_file
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Snapshot
from oomscope.units import MiB

LIMITS = Limits(memory=512 * MiB, seconds=5)
SNIPPETS = (
    b"r\xff\xff\xff\x7f",  # LONG_BINPUT
    b"j\xff\xff\xff\xff",  # LONG_BINGET
    b"\x8e" + struct.pack("<Q", 2**40),  # BINBYTES8
    b"\x8d" + struct.pack("<Q", 2**33),  # BINUNICODE8
    b"\x96" + struct.pack("<Q", 2**36),  # BYTEARRAY8
    b"\x95" + struct.pack("<Q", 2**62),  # FRAME
    b"\x8b\xff\xff\xff\x7f",  # LONG4
    b"cos\nsystem\n",
    b"\x8c\x02os\x8c\x06system\x93",  # STACK_GLOBAL
    b"(" * 50,
    b"2" * 50,  # DUP
    b"0" * 20,  # POP
    b")" + b"\x85" * 2000,  # a nested tuple
    b"]" * 500 + b"a" * 499,  # a nested list
    b"}" * 100 + b"\x8c\x01a",
    b"h\x00",
    b"h\x05a",
    b"e",
    b"u",
    b"t",
    b"b",
    b"R",
    b"\x81",
    b"\x92",
    b"Q",
    b".",
    b"N",
    b"G\x7f\xf8\x00\x00\x00\x00\x00\x00",  # nan
    b"\x8a\x09" + b"\xff" * 8 + b"\x7f",  # a long int
    b"I99999999999999999999\n",
    b"\x88",
    b"C\x03abc",
    b"\x91",
    b"\x8f",
)


def mutation(content: bytes, number: int) -> bytes:
    """Return ``content`` damaged in one to four places, the same for the same number."""
    dice = random.Random(number)
    damaged = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(damaged) + 1)
        match dice.randrange(8):
            case 0:
                damaged[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                damaged[at : at + 1] = bytes([(damaged[at] if at < len(damaged) else 0) ^ 1 << dice.randrange(8)])
            case 2:
                del damaged[at:]
            case 3:
                del damaged[at : at + dice.randint(1, 64)]
            case 4:
                source = dice.randrange(len(damaged) + 1)
                damaged[at:at] = damaged[source : source + dice.randint(1, 256)]
            case 5:
                damaged[at:at] = dice.choice(SNIPPETS)
            case 6:
                snippet = dice.choice(SNIPPETS)
                damaged[at : at + len(snippet)] = snippet
            case _:
                damaged[at : at + 4] = struct.pack("<I", dice.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)))
    return bytes(damaged)


def read(content: bytes, *, commands: bool = False) -> str:
    """Return ``loaded`` or ``refused``; raise whatever a reading process or a command would fail with.

    With ``commands`` also ``command refused``, where a command has one line to say and nothing else.
    """
    out = io.BytesIO()
    answer(io.BytesIO(content), out, asdict(LIMITS))
    out.seek(0)
    tables = Tables.read(out)
    if message := tables.values.get("error"):
        assert message.isprintable(), message
        return "refused"
    snapshot = snapshot_from(tables)
    for trace in snapshot.traces:
        timeline = Timeline.of(trace, snapshot.segments)
        found = timeline.reconciliation
        assert sum(reason.difference_bytes for reason in found.reasons) == found.difference_bytes, found
    return used(snapshot) if commands else "loaded"


def used(snapshot: Snapshot) -> str:
    """Return ``loaded`` once every command has read, told and printed ``snapshot``, or ``command refused``."""
    screen = result_console(io.StringIO())
    outcome = "loaded"
    for command in (_explain, _replay, _diff):
        try:
            told, shown = command(snapshot)
        except OomscopeError:
            outcome = "command refused"
        else:
            json.dumps(told, allow_nan=False)
            show(screen, shown)
    return outcome


def _explain(snapshot: Snapshot) -> tuple[object, Report]:
    explanation = explain(snapshot, file="damaged")
    return explanation.to_json(), explain_report(explanation)


def _replay(snapshot: Snapshot) -> tuple[object, Report]:
    table = replay_file(snapshot)
    return table.to_json(), replay_report(table)


def _diff(snapshot: Snapshot) -> tuple[object, Report]:
    difference = diff(Named("damaged", snapshot), Named("again", snapshot))
    return difference.to_json(), diff_report(difference)


@dataclass
class Found:
    """What became of the mutations."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)
    """Number of the mutation and traceback."""
    peak_mib: int = 0
    """The largest resident set of a worker."""


def run(files: list[Path], first: int, count: int, *, timeout: float, commands: bool = False) -> Found:
    """Read mutations ``first`` to ``first + count`` of the files in turn, in workers."""
    found, behind = Found(), first + count
    while first < behind:
        command = [sys.executable, __file__, "--worker", "--first", str(first), "--count", str(behind - first)]
        command += ["--commands"] if commands else []
        done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, timeout=timeout)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        found.outcomes.update(row["outcome"] for row in rows if "outcome" in row)
        found.peak_mib = max([found.peak_mib, *(row["peak_mib"] for row in rows)])
        first += len([row for row in rows if "outcome" in row])
        if done.returncode:
            end = signal.Signals(-done.returncode).name if done.returncode < 0 else "failed"
            found.outcomes[end] += 1
            if done.returncode > 0:
                found.failures.append(f"mutation {first}: {done.stderr}")
            first += 1
    return found


def work(files: list[Path], first: int, count: int, *, commands: bool) -> None:
    """Print a line a mutation."""
    warnings.simplefilter("error")
    contents = [unpacked(path.read_bytes()) for path in files]
    for number in range(first, first + count):
        outcome = read(mutation(contents[number % len(contents)], number), commands=commands)
        print(json.dumps({"outcome": outcome, "peak_mib": peak_mib()}), flush=True)


def peak_mib() -> int:
    """Return the largest resident set of this program; ``ru_maxrss`` counts that of whoever started it as well."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def unpacked(content: bytes) -> bytes:
    """Return what is compressed without its compression, which checks itself."""
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    return zstandard.decompress(content) if content.startswith(b"\x28\xb5\x2f\xfd") else content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--commands", action="store_true", help="run explain, replay and diff on what loads")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.files, options.first, options.count, commands=options.commands)
        return
    found = run(options.files, options.first, options.count, timeout=6 * 3600, commands=options.commands)
    print(dict(found.outcomes), f"largest worker {found.peak_mib} MiB")
    for failure in found.failures:
        print(failure)
    sys.exit(bool(found.failures))


if __name__ == "__main__":
    main()
