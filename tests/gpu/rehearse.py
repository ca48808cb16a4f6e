"""Leaves what ``capture.py`` leaves, without a card: an emulated one fails and plays, the simulated device trains.

    python tests/gpu/rehearse.py OUT [--ways 2] [--records 6]

What comes out has the form of a capture, so that all that is done with one can be tried; of a real card it
says nothing. Addresses descend, which no play of them takes for granted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from oomscope.allocator import Driver  # noqa: E402
from oomscope.probe.measurement import AllocatorStats  # noqa: E402
from oomscope.snapshot.write import to_document  # noqa: E402
from oomscope.virtual.cards import find_card  # noqa: E402
from tests.gpu import capture, simulated  # noqa: E402
from tests.gpu.captures import failures, golden, history, training  # noqa: E402
from tests.gpu.captures.parcel import write  # noqa: E402
from tests.gpu.emulated import emulated_torch, on_card  # noqa: E402

CARD = find_card("h200")
TORCH = "2.11.0"
SMALL = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "num_query_groups": 4, "ffn_hidden_size": 256}
FAMILY, SCALE = "norms", 1 / 64
SHORT = {"vocab_size": 512, "seq_length": 128}


def machine() -> dict[str, Any]:
    """Return what describes the card that is played."""
    major, minor = CARD.capability
    return {
        "torch": TORCH,
        "gpu": "emulated",
        "driver": None,
        "compute_capability": f"{major}.{minor}",
        "multiprocessors": CARD.multiprocessors,
        "total_memory": CARD.total_bytes,
    }


def failure(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return how one program fails on the emulated card."""
    with on_card(_card(spec["conf"]), failures):
        return failures.run({**spec, "folder": str(folder)})


def trained(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return how a small decoder trains on the simulated device."""
    spec = {**spec, **SMALL, **SHORT}
    measured = simulated.trained(spec, CARD, conf=spec["conf"], torch_version=TORCH).measurement()
    document = to_document(measured.snapshot)
    for event in document["device_traces"][0]:
        del event["user_metadata"]  # the simulated device's own, which no card writes
    with on_card(_card(spec["conf"])):
        history.save(folder / spec["file"], document)
    return {**spec, "folder": None, "stats": _named(measured.stats)}


def operations(family: str) -> dict[str, Any]:
    """Return what operations take on the simulated device, at a small size."""
    rows = simulated.operations(family, CARD, torch_version=TORCH, scale=SCALE)
    return {"name": family, "kind": "family", "conf": "", "scale": SCALE, "rows": rows}


def played(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the emulated card makes of a recorded trace."""
    with on_card(_card(record["conf"])):
        return golden.play({"record": record})


def _card(conf: str) -> Any:
    return emulated_torch(conf, Driver(CARD.total_bytes, policy="down"), TORCH)


def _named(stats: AllocatorStats) -> dict[str, int]:
    kinds = {"allocated_bytes": stats.allocated_bytes_peak, "reserved_bytes": stats.reserved_bytes_peak}
    return {f"{kind}.all.peak": value for kind, value in kinds.items()}


def rehearse(out: Path, *, ways: int, records: int, programs: Sequence[str] = tuple(failures.PROGRAMS)) -> None:
    """Write all parts."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = [item for item in training.items() if not item["conf"].startswith("garbage")]
    traces = islice(capture.records([ROOT / "fixtures" / "allocator-golden"]), 0, None, 3)
    parts: dict[str, Any] = {
        "machine": lambda _folder: [machine()],
        "failures": lambda folder: [failure(spec, folder) for spec in failures.items() if spec["name"] in programs],
        "training": lambda folder: [trained(spec, folder) for spec in wanted[:ways]],
        "temporaries": lambda _folder: [operations(FAMILY)],
        "golden": lambda _folder: [played(record) for record in islice(traces, records)],
    }
    for part, run in parts.items():
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            done = run(Path(folder))
            write(out, part, {"torch": TORCH, "is_whole": True, "items": done}, Path(folder))
        print(f"{part}: {len(done)}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Rehearse and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ways", type=int, default=2)
    parser.add_argument("--records", type=int, default=6)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    rehearse(given.out, ways=given.ways, records=given.records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
