"""Read damaged snapshots by the thousand: each must load or be refused, and nothing else may happen.

    python tests/unit/snapshot/fuzz.py 0 20000 commands fixtures/snapshots/*.* ../shared/data/snapshots/*

A worker does what the reading process does (``child.answer``, with its limits on memory and time), then what a command
does with the answer; with ``commands`` all that ``explain``, ``replay`` and ``diff`` do, and their printers. A mutation
is named by its number: the same numbers give the same bytes. Where one ends the worker by a signal, as it may end a
reading process, the next worker goes on behind it.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import zstandard

from oomscope.errors import OomscopeError
from oomscope.report.commands.diff import diff_report
from oomscope.report.commands.explain import explain_report
from oomscope.report.commands.replay import replay_report
from oomscope.report.text.console import result_console, show
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.read.build_snapshot import snapshot_from
from oomscope.snapshot.read.child import answer
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.tables import Tables
from oomscope.snapshot.replay.replay_table import replay_file
from oomscope.snapshot.trace import Snapshot
from oomscope.units import MiB
from tests.unit.snapshot.explained import explain

LIMITS = Limits(memory=512 * MiB, seconds=5)
SNIPPETS = (
    *(b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\xff", b"\x8e" + struct.pack("<Q", 2**40)),
    *(b"\x8d" + struct.pack("<Q", 2**33), b"\x96" + struct.pack("<Q", 2**36), b"\x95" + struct.pack("<Q", 2**62)),
    *(b"\x8b\xff\xff\xff\x7f", b"cos\nsystem\n", b"\x8c\x02os\x8c\x06system\x93", b"(" * 50, b"2" * 50, b"0" * 20),
    *(b")" + b"\x85" * 2000, b"]" * 500 + b"a" * 499, b"}" * 100 + b"\x8c\x01a", b"h\x00", b"h\x05a"),
    *(b"e", b"u", b"t", b"b", b"R", b"\x81", b"\x92", b"Q", b".", b"N", b"G\x7f\xf8" + bytes(6)),
    *(b"\x8a\x09" + b"\xff" * 8 + b"\x7f", b"I99999999999999999999\n", b"\x88", b"C\x03abc", b"\x91", b"\x8f"),
)
"""Opcodes of pickle: lengths of far more bytes than there are, calls, deep nesting, odd numbers."""


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


def read(content: bytes, *, commands: bool) -> str:
    """Return ``loaded``, ``refused`` or ``command refused``; raise whatever else would happen."""
    out = io.BytesIO()
    answer(io.BytesIO(content), out, asdict(LIMITS))
    out.seek(0)
    tables = Tables.read(out)
    if message := tables.values.get("error"):
        assert message.isprintable(), message
        return "refused"
    snapshot = snapshot_from(tables)
    for trace in snapshot.traces:
        found = Timeline.of(trace, snapshot.segments).reconciliation
        assert sum(reason.difference_bytes for reason in found.reasons) == found.difference_bytes, found
    return used(snapshot) if commands else "loaded"


def used(snapshot: Snapshot) -> str:
    """Return ``loaded`` once every command has read, told and printed ``snapshot``, or ``command refused``."""
    outcome = "loaded"
    for command, report in (
        (lambda: explain(snapshot, file="damaged"), explain_report),
        (lambda: replay_file(snapshot), replay_report),
        (lambda: diff(Named("damaged", snapshot), Named("again", snapshot)), diff_report),
    ):
        try:
            found = command()
        except OomscopeError:
            outcome = "command refused"
        else:
            json.dumps(found.to_json(), allow_nan=False)
            show(result_console(io.StringIO()), report(found))
    return outcome


def run(files: list[Path], first: int, count: int, *, timeout: float, commands: bool = False) -> Counter[str]:
    """Read mutations ``first`` to ``first + count`` of the files in turn, in workers; count what became of them."""
    outcomes: Counter[str] = Counter()
    behind = first + count
    while first < behind:
        command = [sys.executable, __file__, str(first), str(behind - first), "commands" if commands else "reading"]
        done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, timeout=timeout)
        assert done.returncode <= 0, f"mutation {first + len(done.stdout.splitlines())}: {done.stderr}"
        outcomes.update(done.stdout.splitlines())
        first += len(done.stdout.splitlines())
        if done.returncode:
            outcomes["ended"] += 1
            first += 1
    return outcomes


def unpacked(content: bytes) -> bytes:
    """Return what is compressed without its compression, which checks itself."""
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    return zstandard.decompress(content) if content.startswith(b"\x28\xb5\x2f\xfd") else content


if __name__ == "__main__":
    warnings.simplefilter("error")
    _, start, number_of_them, mode, *paths = sys.argv
    contents = [unpacked(Path(path).read_bytes()) for path in paths]
    for number in range(int(start), int(start) + int(number_of_them)):
        print(read(mutation(contents[number % len(contents)], number), commands=mode == "commands"), flush=True)
