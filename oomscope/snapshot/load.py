"""Read a snapshot file from anybody: bytes to plain values, with nothing in the file able to run.

The unpickler admits no globals at all, so a file can only describe dicts, lists, tuples, strings and numbers; PyTorch
writes nothing else. What those values mean is :mod:`oomscope.snapshot.schema`.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from oomscope.errors import SnapshotError
from oomscope.snapshot.schema import snapshot_of
from oomscope.snapshot.trace import Snapshot
from oomscope.units import GiB, format_size

GZIP_MAGIC: Final = b"\x1f\x8b"
_MALFORMED: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the standard unpickler and JSON reader raise on damaged input."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a file may be before it is refused."""

    file_bytes: int = 4 * GiB
    """Bytes on disk."""
    unpacked_bytes: int = 8 * GiB
    """Bytes after decompression."""


def load_snapshot(path: Path | str, *, limits: Limits | None = None) -> Snapshot:
    """Return the snapshot in ``path``: a pickle of any torch since 2.0, or the same as JSON; plain or gzip.

    Raises:
        SnapshotError: the file is missing, too large, damaged, tries to run something, or is no snapshot.
    """
    source = Path(path)
    return parse_snapshot(_read(source, limits or Limits()), where=str(source))


def parse_snapshot(content: bytes, *, where: str) -> Snapshot:
    """Return the snapshot that uncompressed bytes hold; ``where`` names them in messages.

    Raises:
        SnapshotError: they are damaged, try to run something, or are no snapshot.
    """
    return snapshot_of(_decode(content, where), where=where)


def _read(source: Path, limits: Limits) -> bytes:
    """Return the file's bytes, decompressed where it is gzip."""
    where = str(source)
    try:
        size = source.stat().st_size
        if size > limits.file_bytes:
            _refuse_size(where, size, limits.file_bytes)
        content = source.read_bytes()
    except OSError as error:
        raise SnapshotError(
            f"cannot read: {error.strerror or error}", where=where, remedy="name a snapshot file"
        ) from error
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            unpacked = packed.read(limits.unpacked_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SnapshotError(f"damaged gzip ({error})", where=where, remedy="copy the file again") from error
    if len(unpacked) > limits.unpacked_bytes:
        _refuse_size(where, len(unpacked), limits.unpacked_bytes)
    return unpacked


def _refuse_size(where: str, size: int, limit: int) -> NoReturn:
    raise SnapshotError(
        f"{format_size(size)} is more than the {format_size(limit)} allowed",
        where=where,
        remedy="record fewer events (max_entries)",
    )


def _decode(content: bytes, where: str) -> Any:
    """Return the plain values that the bytes describe."""
    if not content:
        raise SnapshotError("file is empty", where=where, remedy="record the snapshot again")
    try:
        if content[:64].lstrip()[:1] in (b"{", b"["):
            return json.loads(content)
        return _PlainValues(io.BytesIO(content)).load()
    except SnapshotError as error:
        raise SnapshotError(error.message, where=where, remedy=error.remedy) from None
    except _MALFORMED as error:
        reason = str(error) or type(error).__name__
        raise SnapshotError(
            f"no readable pickle or JSON ({reason})", where=where, remedy="record or copy the snapshot again"
        ) from error


class _PlainValues(pickle.Unpickler):
    """An unpickler that builds builtin containers, strings and numbers, and refuses everything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(
            f"the pickle asks for {module}.{name}, which no memory snapshot needs",
            remedy="do not open it with anything else either",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise SnapshotError(
            "the pickle refers to objects outside itself, which no memory snapshot does",
            remedy="give a file made by torch.cuda.memory._dump_snapshot",
        )
