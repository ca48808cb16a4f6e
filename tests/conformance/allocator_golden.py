"""Replay recorded traces of PyTorch's real caching allocator and compare every field of what it did.

    python tests/conformance/allocator_golden.py FILE.jsonl.gz...

The schema of the records: fixtures/allocator-golden/README.md. ``--every-version`` compares each record on every
torch version that the recording found identical; ``--compiled`` uses the compiled engine. The last line says ``K of N
records identical``; the exit code is 0 only where K = N. Records with ``addr_policy: random`` are skipped, counted and
named: the addresses that the recording's driver drew are not in them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oomscope.allocator import (
    AllocatorEvent,
    AllocatorSegment,
    AllocatorSettings,
    Driver,
    ReplayOp,
)
from oomscope.units import MiB
from tests.caching_allocator import CachingAllocator, DeviceOutOfMemory, ShownReplay, sizes_of

Record = dict[str, Any]
Allocator = CachingAllocator | ShownReplay

PEAKS = {"reserved_peak": "reserved_bytes", "allocated_peak": "allocated_bytes", "active_peak": "active_bytes"}
PEAKS["requested_peak"] = "requested_bytes"
BATCHED = {"m": ReplayOp.MALLOC, "f": ReplayOp.FREE, "r": ReplayOp.RECORD_STREAM, "e": ReplayOp.EMPTY_CACHE}
CONTROLS = frozenset("poxc")


def records(path: Path) -> Iterator[Record]:
    """Yield the records of one file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@dataclass
class Transcript:
    """What the emulator did with a record, in the record's own terms: addresses as (range, offset)."""

    fields: dict[str, Any] = field(
        default_factory=lambda: {
            key: [] for key in ("events", "placements", "ooms", "deferred_frees", "markers", "segments")
        }
    )
    _bases: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add_event(self, op: int, event: AllocatorEvent, device_total: int) -> None:
        if event.action == "free_completed":
            self.fields["deferred_frees"].append([op, event.range, event.offset, event.size])
            return
        if event.action == "oom":
            self.fields["events"].append([op, "oom", None, None, event.size, event.stream, event.address])
            self.fields["ooms"].append(
                {
                    "op": op,
                    "alloc_size": event.alloc_size,
                    "device_total": device_total,
                    "device_free": event.address,
                }
            )
            return
        self.fields["events"].append([op, event.action, event.range, event.offset, event.size, event.stream])
        pages = range(event.address // MiB, (event.address + event.size) // MiB)
        if event.action in {"segment_alloc", "segment_map"}:
            self._bases.update(dict.fromkeys(pages, (event.range, event.address - event.offset)))
        else:
            for page in pages:
                del self._bases[page]

    def add_placement(self, address: int, size: int) -> None:
        if size <= 0:
            self.fields["placements"].append(None)
            return
        number, base = self._bases[address // MiB]
        self.fields["placements"].append([number, address - base, size])

    def close(self, allocator: Allocator) -> dict[str, Any]:
        self.fields["deferred_frees"].sort()
        segments = [_segment(segment) for segment in allocator.segments()]
        self.fields["segments"] = sorted(segments, key=lambda segment: (segment["range"], segment["offset"]))
        self.fields["stats"] = stats = allocator.stats()
        for name, kind in PEAKS.items():
            self.fields[name] = stats[kind]["all"]["peak"]
        self.fields["reserved_end"], self.fields["allocated_end"] = allocator.reserved_bytes, allocator.allocated_bytes
        self.fields |= {name: stats[name] for name in ("num_ooms", "num_alloc_retries")}
        self.fields["device_peak"] = allocator.device_peak
        return self.fields


def play(record: Record, torch_version: str) -> dict[str, Any]:
    """Push a record's operations through a fresh allocator, one by one."""
    allocator = CachingAllocator(_settings(record, torch_version), _driver(record), fraction=record["fraction"])
    transcript = Transcript()
    addresses: dict[int, int] = {}
    for op, (kind, *operands) in enumerate(record["ops"]):
        placement = (0, 0)
        if kind == "m":
            try:
                placement = allocator.malloc(*operands[1:])
            except DeviceOutOfMemory:
                pass
            else:
                addresses[operands[0]] = placement.address
        elif kind == "f":
            allocator.free(addresses.pop(operands[0], 0))
        elif kind == "r":
            allocator.record_stream(addresses.get(operands[0], 0), operands[1])
        elif kind == "e":
            allocator.empty_cache()
        else:
            _control(allocator, transcript, op, kind, operands)
        for event in allocator.drain_events():
            transcript.add_event(op, event, _allowed(allocator))
        if kind == "m":
            transcript.add_placement(*placement)
    return transcript.close(allocator)


def play_batched(record: Record, torch_version: str, *, compiled: bool) -> dict[str, Any]:
    """Push a record's operations through the replay, as many at once as lie between two changes from outside."""
    ops = record["ops"]
    allocator = ShownReplay(
        _settings(record, torch_version),
        _driver(record),
        ids=1 + max((op[1] for op in ops if op[0] == "m"), default=0),
        fraction=record["fraction"],
        compiled=compiled,
    )
    transcript = Transcript()
    start = 0
    for end in range(len(ops) + 1):
        if end < len(ops) and ops[end][0] in BATCHED:
            continue
        _play_batch(allocator, transcript, ops[start:end], start)
        if end < len(ops):
            kind, *operands = ops[end]
            _control(allocator, transcript, end, kind, operands)
        start = end + 1
    return transcript.close(allocator)


def _play_batch(allocator: ShownReplay, transcript: Transcript, ops: list[list[Any]], start: int) -> None:
    kinds = [BATCHED[op[0]] for op in ops]
    ids = [op[1] if len(op) > 1 else 0 for op in ops]
    nbytes = [op[2] if op[0] == "m" else 0 for op in ops]
    streams = [(op[3:] or [0])[0] if op[0] == "m" else op[2] if op[0] == "r" else 0 for op in ops]
    outcome = allocator.run(kinds, ids, nbytes, streams)
    events = iter((*outcome.events, None))
    event = next(events)
    for index, kind in enumerate(kinds):
        while event is not None and event.op == index:
            transcript.add_event(start + index, event, _allowed(allocator))
            event = next(events)
        if kind == ReplayOp.MALLOC:
            transcript.add_placement(int(outcome.addresses[index]), int(outcome.sizes[index]))


def _control(allocator: Allocator, transcript: Transcript, op: int, kind: str, operands: list[Any]) -> None:
    if kind == "p":
        allocator.hold_events(bool(operands[0]))
    elif kind == "o":
        allocator.set_other_bytes(operands[0])
    elif kind == "x":
        allocator.set_fraction(operands[0])
    elif kind == "c":
        allocator.set_settings(operands[0])
    else:
        transcript.fields["markers"].append({"op": op, "stats": allocator.stats()})


def _allowed(allocator: Allocator) -> int:
    """Return what the out-of-memory observer is told of the device: the limit, where a fraction sets one, even of 0."""
    return allocator.device_total if allocator.limit_bytes is None else allocator.limit_bytes


def _settings(record: Record, torch_version: str) -> AllocatorSettings:
    return AllocatorSettings.parse(record["conf"], torch_version=torch_version)


def _driver(record: Record) -> Driver:
    return Driver(record["total_bytes"], record["other_bytes"], record["addr_policy"])


def _segment(segment: AllocatorSegment) -> dict[str, Any]:
    names = ("range", "offset", "total_size", "stream", "segment_type", "is_expandable")
    described = {name: getattr(segment, name) for name in names} | sizes_of(segment)
    described["blocks"] = [
        [block.address - segment.address, block.size, block.requested_size, block.state] for block in segment.blocks
    ]
    return described


def differences(record: Record, torch_version: str, *, batched: bool = False, compiled: bool = False) -> list[str]:
    """Return the fields of ``expected`` in which the emulator differs."""
    played = play_batched(record, torch_version, compiled=compiled) if batched else play(record, torch_version)
    expected = record["expected"]
    return [name for name in expected if played.get(name) != expected[name]]


def differences_by_version(
    record: Record, versions: Iterable[str], *, batched: bool = False, compiled: bool = False
) -> dict[str, list[str]]:
    """Return the ``differences`` on each version; versions of which the engine is told the same are played once."""
    found: dict[str, list[str]] = {}
    by_version = {}
    for version in versions:
        told = _reported(record, version)
        if told not in found:
            found[told] = differences(record, version, batched=batched, compiled=compiled)
        by_version[version] = found[told]
    return by_version


def _reported(record: Record, torch_version: str) -> str:
    """Return all that an engine learns of its version: its memory at the start and after each change from outside.

    The engine knows nothing but its memory, so that what it then does can differ only where this does.
    """
    allocator = CachingAllocator(_settings(record, torch_version), _driver(record), fraction=record["fraction"])
    seen: list[Any] = [list(allocator._memory), allocator.stats()]
    for op, (kind, *operands) in enumerate(record["ops"]):
        if kind in CONTROLS:
            _control(allocator, Transcript(), op, kind, operands)
            seen.append(list(allocator._memory))
    return repr(seen)


def main(arguments: list[str]) -> int:
    """Compare the records of the files named and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl.gz")
    parser.add_argument("--every-version", action="store_true", help="play each record for all versions it holds for")
    parser.add_argument("--compiled", action="store_true", help="use the compiled engine")
    options = parser.parse_args(arguments)
    identical = compared = skipped = 0
    for path in options.files:
        for record in records(path):
            if record["addr_policy"] == "random":
                skipped += 1
                print(f"skipped {path.name} {record['name']}: random addresses")
                continue
            versions = record["identical_on"] if options.every_version else [record["torch_version"]]
            how = {"batched": options.compiled, "compiled": options.compiled}
            for version, wrong in differences_by_version(record, versions, **how).items():
                compared += 1
                identical += not wrong
                if wrong:
                    print(f"differs {path.name} {record['name']} on torch {version}: {', '.join(wrong)}")
    print(f"{skipped} skipped")
    print(f"{identical} of {compared} records identical")
    return 0 if identical == compared > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
