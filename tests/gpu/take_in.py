"""Takes captures that came back from a card into the fixtures, trimmed, and says beside them how they were made.

    python tests/gpu/take_in.py OUT... --command "what was run" [--into fixtures/snapshots/cuda] [--force]

OUT is what ``capture.py`` wrote; several are taken together. No file is larger than 2 MiB: documents are cut into
several, stacks are taken off the frees of a snapshot, and one that is too large even so is left out by name. What is
no capture is refused (exit code 2) and nothing is written; so are captures of the virtual card without ``--virtual``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from oomscope.errors import SnapshotError  # noqa: E402
from oomscope.snapshot.read.load import load_snapshot  # noqa: E402

INTO = ROOT / "fixtures" / "snapshots" / "cuda"
LARGEST = 2 << 20
PARTS = {
    "machine": "the machine: versions, card, driver, bytes of a context",
    "failures": "failed allocations of each kind, with the observer's snapshot",
    "training": "two iterations of a small decoder, with the snapshot at the end",
    "temporaries": "what single operations and cuBLAS allocate",
    "golden": "recorded allocator traces, played on the card",
}
_SNAPSHOT = re.compile(r"(oom|training)-[a-z0-9-]+\.pickle\.gz")
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)+")


class NoCaptureError(Exception):
    """What was given is no capture; the message names what and why."""


def document_of(path: Path) -> dict[str, Any]:
    """Return a part's document.

    Raises:
        NoCaptureError: it is none.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise NoCaptureError(f"{path}: no capture: {error}") from None
    part = path.name.removesuffix(".json.gz")
    shape = isinstance(document, dict) and (document.get("schema_version"), document.get("part")) == (1, part)
    rows = document.get("items") if shape else None
    if not isinstance(rows, list) or not rows or not isinstance(document.get("torch"), str):
        raise NoCaptureError(f"{path}: no capture of {part}: it lacks schema, part, torch or items")
    return {**document, "items": [cleaned(item) for item in rows]}


def cleaned(item: Any) -> dict[str, Any]:
    """Return an item without the paths of its machine.

    Raises:
        NoCaptureError: it is no item.
    """
    if not isinstance(item, dict):
        raise NoCaptureError(f"an item is {str(item)[:40]!r}")
    kept = {name: value for name, value in item.items() if name not in {"environment", "folder"}}
    if isinstance(why := kept.get("failed"), str):
        kept["failed"] = why.strip().rpartition("\n")[2] or "it did not say why"
    return {name: _without_paths(value) for name, value in kept.items()}


def _without_paths(value: Any) -> Any:
    """Return JSON values with the folders cut off the paths in them, however deep they lie."""
    if isinstance(value, str):
        return _PATH.sub("", value)
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if isinstance(value, dict):
        return {_without_paths(name): _without_paths(each) for name, each in value.items()}
    return value


def snapshots_in(archive: Path, folder: Path) -> Iterator[Path]:
    """Yield the snapshots of an archive, trimmed, in ``folder``.

    Raises:
        NoCaptureError: it holds something else.
    """
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                if not member.isfile() or not _SNAPSHOT.fullmatch(member.name):
                    raise NoCaptureError(f"{archive}: {member.name!r} is no snapshot of a capture")
                opened.extract(member, folder, filter="data")
                yield folder / member.name
    except tarfile.TarError as error:
        raise NoCaptureError(f"{archive}: no archive: {error}") from None


def trim(path: Path) -> bool:
    """Bring a snapshot below the limit and return whether that could be done.

    Raises:
        NoCaptureError: it is no snapshot, or tells paths of its machine.
    """
    try:
        traces = load_snapshot(path).traces  # with an unpickler that admits nothing; afterwards it can be trusted
    except SnapshotError as error:
        raise NoCaptureError(f"{path.name}: {error}") from None
    if any(frame.filename.startswith("/") for trace in traces for stack in trace.stacks for frame in stack):
        raise NoCaptureError(f"{path.name}: its stacks name paths of the machine")
    if path.stat().st_size > LARGEST:
        with gzip.open(path, "rb") as file:
            document = pickle.load(file)
        for event in (event for trace in document["device_traces"] for event in trace):
            if event["action"].startswith("free"):
                event["frames"] = []
        path.write_bytes(gzip.compress(pickle.dumps(document, protocol=4), compresslevel=9, mtime=0))
    return path.stat().st_size <= LARGEST


def volumes(document: dict[str, Any]) -> list[bytes]:
    """Return a document in as many pieces as the limit asks for, each with some of its items."""
    rows = document["items"]
    whole = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
    if len(whole) <= LARGEST or len(rows) == 1:
        return [whole]
    half = len(rows) // 2
    return [piece for part in (rows[:half], rows[half:]) for piece in volumes({**document, "items": part})]


def gathered(outs: Sequence[Path]) -> dict[str, Path]:
    """Return the document of each part that was captured.

    Raises:
        NoCaptureError: there is none, or a part is there twice.
    """
    found: dict[str, Path] = {}
    for out in outs:
        for part in PARTS:
            path = out / f"{part}.json.gz"
            if path.exists() and part in found:
                raise NoCaptureError(f"{path}: {part} is in {found[part]} as well")
            if path.exists():
                found[part] = path
    if "machine" not in found:
        raise NoCaptureError(f"{', '.join(map(str, outs))}: no machine.json.gz, so nobody knows which card it was")
    return found


def take_in(outs: Sequence[Path], into: Path, *, command: str, virtual: bool = False) -> list[str]:
    """Write the captures in ``outs`` into an empty folder and return what was left out.

    Raises:
        NoCaptureError: something in them is no capture, or was captured on the virtual card.
    """
    found = gathered(outs)
    documents = {part: document_of(path) for part, path in found.items()}
    machine = documents["machine"]["items"][0]
    if "failed" in machine:
        raise NoCaptureError(f"{found['machine']}: it failed, so nobody knows which card it was: {machine['failed']}")
    if len(versions := {document["torch"] for document in documents.values()}) > 1:
        raise NoCaptureError(f"{', '.join(map(str, outs))}: captures of several torch: {', '.join(sorted(versions))}")
    if not virtual and any(document.get("card") != "cuda" for document in documents.values()):
        raise NoCaptureError(f"{', '.join(map(str, outs))}: not captured on a real card")
    left_out = [f"{part}: all of it" for part in PARTS if part not in found]
    cut = [part for part, document in documents.items() if document.get("is_whole") is False]
    left_out += [f"{part}: what came after it was cut off" for part in cut]
    left_out += [
        f"{part}: {item.get('name')} {item.get('conf')}: {item['failed']}"
        for part, document in documents.items()
        for item in document["items"]
        if "failed" in item
    ]
    for part, document in documents.items():
        pieces = volumes(document)
        for number, piece in enumerate(pieces, 1):
            (into / f"{part}{'' if len(pieces) == 1 else f'-{number}'}.json.gz").write_bytes(piece)
        left_out += _take_snapshots(part, document, found[part].parent, into)
    left_out += [f"{archive.name}: no {part}.json.gz tells of it" for archive, part in _untold(outs, found)]
    (into / "README.md").write_text(readme(documents, machine, command, left_out, into), encoding="utf-8")
    return left_out


def _take_snapshots(part: str, document: dict[str, Any], out: Path, into: Path) -> list[str]:
    """Extract the snapshots that items of ``document`` name, and return what was left out, and which are missing."""
    named = {item["file"] for item in document["items"] if "failed" not in item and "file" in item}
    left_out, seen = [], set[str]()
    for archive in sorted(out.glob(f"{part}*.tar")):
        for snapshot in snapshots_in(archive, into):
            seen.add(snapshot.name)
            if not trim(snapshot):
                why = f"more than {LARGEST >> 20} MiB"
            elif snapshot.name not in named:
                why = "no item tells of it"
            else:
                continue
            snapshot.unlink()
            left_out.append(f"{part}: {snapshot.name}: {why}")
    return [*left_out, *(f"{part}: {name}: no archive holds it" for name in sorted(named - seen))]


def _untold(outs: Sequence[Path], found: dict[str, Path]) -> Iterator[tuple[Path, str]]:
    """Yield the archives that lie without the document of their part, with its name."""
    for out in outs:
        for archive in sorted(out.glob("*.tar")):
            part = re.sub(r"-\d+$", "", archive.stem)
            if part not in found or found[part].parent != out:
                yield archive, part


def readme(
    documents: dict[str, Any], machine: dict[str, Any], command: str, left_out: Sequence[str], into: Path
) -> str:
    """Return how the captures were made."""
    rows = [
        f"| `{part}*.json.gz` | {PARTS[part]} | {sum('failed' not in item for item in document['items'])} |"
        f" {len([*into.glob(f'{prefix}-*.pickle.gz')]) if (prefix := _prefix(part)) else 0} |"
        for part, document in documents.items()
    ]
    said = {
        "card": f"{machine.get('gpu')}, compute capability {machine.get('compute_capability')}, "
        f"{machine.get('total_memory')} bytes",
        "driver": machine.get("driver"),
        "torch": f"{machine.get('torch')}, CUDA {machine.get('cuda')}, cuDNN {machine.get('cudnn')}, "
        f"Python {machine.get('python')}",
        "command": f"`{command}`",
    }
    lines = [
        "# Captures of a real card",
        "",
        "Made by `tests/gpu/capture.py` and taken in by `tests/gpu/take_in.py`; `tests/conformance/test_captures.py`",
        "plays them again. What the parts hold: [tests/gpu](../../../tests/gpu/README.md).",
        "",
        *(f"- {name}: {value}" for name, value in said.items()),
        "",
        "| file | what | items | snapshots |",
        "| --- | --- | --- | --- |",
        *rows,
    ]
    if left_out:
        lines += ["", "Not captured:", "", *(f"- {line}" for line in left_out)]
    return "\n".join(lines) + "\n"


def _prefix(part: str) -> str:
    return {"failures": "oom", "training": "training"}.get(part, "")


def main(words: Sequence[str] | None = None) -> int:
    """Take captures in and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--command", required=True, help="what was run on the card")
    parser.add_argument("--force", action="store_true", help="put them in the place of earlier ones")
    parser.add_argument("--virtual", action="store_true", help="take captures of the virtual card, too")
    given = parser.parse_args(words)
    if given.into.exists() and not given.force:
        print(f"{given.into} exists (--force puts the captures in its place)", file=sys.stderr)
        return 2
    given.into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.into.parent, prefix=".take-in-") as name:
        folder = Path(name) / "cuda"
        folder.mkdir()
        try:
            left_out = take_in(given.out, folder, command=given.command, virtual=given.virtual)
        except NoCaptureError as error:
            print(error, file=sys.stderr)
            return 2
        if given.into.exists():
            shutil.rmtree(given.into)
        folder.rename(given.into)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(f"Wrote {given.into}: {sum(path.stat().st_size for path in given.into.iterdir()) / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
