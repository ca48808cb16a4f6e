"""A table of recorded snapshots: every snapshot of a folder, its peaks, and how its replays go.

    python benchmarks/snapshot_table.py DIR

One row a device that recorded something. Live and reserved bytes are the recording's; what is reserved under the
file's own settings and under expandable segments is replayed, both begun with nothing cached, so that they compare.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.replay.fixes import AS_RECORDED
from oomscope.snapshot.replay.replay_table import AFRESH, ReplayTable, replay_file
from oomscope.snapshot.trace import Snapshot, Trace
from oomscope.units import format_size

FEW = 20
"""Events of one reason that are listed one by one."""
EXPANDABLE = "expandable_segments:True"
FIXTURES = Path(__file__).parents[1] / "fixtures" / "snapshots"
SUFFIXES = (".pickle", ".pkl", ".gz", ".zst", ".json")
HEAD = """\
# Recorded snapshots, replayed

Files of other people's runs (the `memsnapdump` ones are of Ascend NPUs). Written by
`python benchmarks/snapshot_table.py DIR`.

- *Live* and *reserved*: at the peak of requested bytes; the overhead is their difference. *At most*: the most
  reserved at any event.
- *Fidelity*: the share of segment events that the replay under the file's own settings repeats at the same request,
  with the same size and stream. *Placed*: the allocations that it puts at the recorded address.
- *Own* and *expandable*: what is reserved at most in a replay under the file's own settings and under
  `expandable_segments:True`, both begun with the blocks of then packed afresh and nothing cached.

| file, device | events | live | reserved | overhead | at most | fidelity | placed | own | expandable |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def rows(path: Path) -> Iterator[str]:
    """Yield the rows of one file."""
    snapshot = load_snapshot(path)
    traces = [trace for trace in snapshot.traces if len(trace)]
    if not traces:
        held = sum(segment.total_size for segment in snapshot.segments)
        yield f"| {path.name} | no trace | | | | {format_size(held)} | | | | |"
    for trace in traces:
        yield row(path, snapshot, trace)


def row(path: Path, snapshot: Snapshot, trace: Trace) -> str:
    """Return the row of one device."""
    timeline = Timeline.of(trace, snapshot.segments)
    table = replay_file(snapshot, device=trace.device, confs=[EXPANDABLE])
    event = max(table.peak_event, 0)
    reserved = int(timeline.reserved[event])
    fidelity = table.fidelity
    cells = (
        f"{path.name}, {trace.device}",
        f"{len(trace):,}",
        format_size(table.peak_requested_bytes),
        format_size(reserved),
        format_size(reserved - table.peak_requested_bytes),
        format_size(timeline.reserved_peak().reserved_bytes),
        f"{fidelity.share:.3f} ({fidelity.matched:,} of {max(fidelity.recorded, fidelity.emulated):,})",
        f"{fidelity.placed:,} of {fidelity.allocations:,}",
        format_size(peak_of(table, AFRESH, AS_RECORDED)),
        format_size(peak_of(table, EXPANDABLE, AS_RECORDED)),
    )
    return f"| {' | '.join(cells)} |"


def peak_of(table: ReplayTable, *names: str) -> int:
    """Return what is reserved at most in the first row of ``names`` that the table has."""
    peaks = {row.name: row.peak_reserved_bytes for row in table.rows}
    return next(peaks[name] for name in names if name in peaks)


def reasons(path: Path) -> Iterator[str]:
    """Yield why segment events of a file are not repeated."""
    snapshot = load_snapshot(path)
    for trace in (trace for trace in snapshot.traces if len(trace)):
        table = replay_file(snapshot, device=trace.device, confs=[])
        for reason in dict.fromkeys(mismatch.reason for mismatch in table.fidelity.mismatches):
            events = [mismatch for mismatch in table.fidelity.mismatches if mismatch.reason == reason]
            yield f"- {path.name}, device {trace.device}, {len(events)} events: {reason}."
            if len(events) <= FEW:
                yield from (
                    f"  - {'recorded' if row.recorded else 'replayed'} only: {row.action} of {format_size(row.size)} "
                    f"at event {row.event:,}"
                    for row in events
                )


def main(arguments: list[str] | None = None) -> int:
    """Write the page to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="?", default=FIXTURES, help="default: the fixtures")
    given = parser.parse_args(arguments)
    files = sorted(path for path in given.directory.iterdir() if path.suffix in SUFFIXES)
    started = time.perf_counter()
    sys.stdout.write(HEAD)
    for path in files:
        sys.stdout.writelines(f"{line}\n" for line in rows(path))
    lines = [line for path in files for line in reasons(path)]
    sys.stdout.write("\nNot repeated, and why:\n\n" if lines else "\nEverything is repeated.\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stderr.write(f"{len(files)} files in {time.perf_counter() - started:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
