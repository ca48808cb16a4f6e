"""From the bytes of a file to plain values: decompress, then unpickle or parse JSON, with nothing able to run.

The unpickler admits no globals at all, so a file can only describe dicts, lists, tuples, strings and numbers; PyTorch
writes nothing else. Input is consumed as a stream, so that a small file which unpacks to a large one is never held.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

from oomscope.errors import SnapshotError
from oomscope.snapshot.read.limits import ALLOW_MORE, UNPACKED_PER_BYTE
from oomscope.snapshot.read.reader import AGAIN, REMEDY
from oomscope.units import format_size

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
XZ_MAGIC: Final = b"\xfd7zX"
BUFFER_BYTES: Final = 1 << 18
MAX_NAME: Final = 80
"""Characters of a hostile name that a message repeats."""
_MALFORMED: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of the standard unpickler and JSON reader on damaged input."""
_JSON: Final = re.compile(rb"\s*[{[]")
_DATA_OF: Final = frozenset({"collections", "datetime", "decimal", "numpy", "pandas", "pathlib", "torch", "uuid"})
"""Packages whose objects people put beside a snapshot; they are refused as any other, but are nothing to warn of."""
_ZIP_MAGIC: Final = b"PK\x03\x04"
_TORCH_SAVE_MAGIC: Final = 0x1950A86A20F9469CFC6C
"""The value that a file of ``torch.save`` began with before it was a zip archive (torch/serialization.py)."""
_NOT_TEXT: Final = f"{REMEDY}; for a job's log use oomscope config import"


Consumed: TypeAlias = Callable[[int], None]


def decode(file: BinaryIO, *, file_bytes: int, unpacked_bytes: int, consumed: Consumed) -> Any:
    """Return the plain values in ``file``: a pickle or JSON, plain, gzip, zstd or xz.

    ``consumed`` is told how many bytes were unpacked, as far as they count, before more of them are used.

    Raises:
        SnapshotError: the content is damaged, too long, or tries to run something.
        MemoryError: it asks for more than there is.
    """
    source = _Metered(file, file_bytes, consumed)
    packed = io.BufferedReader(source, BUFFER_BYTES)
    content, magic = packed, packed.peek(4)
    if magic.startswith((GZIP_MAGIC, ZSTD_MAGIC, XZ_MAGIC)):
        unpacker = _unpacker(packed, magic)
        meter = _Metered(unpacker, unpacked_bytes, lambda total: consumed(min(total, UNPACKED_PER_BYTE * source.total)))
        content = io.BufferedReader(meter, BUFFER_BYTES)
    if not (head := content.peek(64)[:64]):
        raise SnapshotError("file is empty", remedy="record the snapshot again")
    if head.startswith(_ZIP_MAGIC):
        raise SnapshotError("a zip archive, as torch.save writes, not a memory snapshot", remedy=REMEDY)
    try:
        if _JSON.match(head):
            return json.loads(content.read())
        document = _PlainValues(content).load()
        while content is not packed and content.read(BUFFER_BYTES):  # the checksum stands at the end
            pass
    except _MALFORMED as error:
        if not _JSON.match(head) and _is_text(head):
            raise SnapshotError("text, neither a pickle nor JSON", remedy=_NOT_TEXT) from error
        reason = _brief(str(error)) or type(error).__name__
        raise SnapshotError(f"not a readable pickle or JSON ({reason})", remedy=AGAIN) from error
    if document == _TORCH_SAVE_MAGIC:
        raise SnapshotError("a torch.save file, not a memory snapshot", remedy=REMEDY)
    return document


def _unpacker(packed: BinaryIO, magic: bytes) -> Any:
    """Return what unpacks ``packed``, of zstd all frames."""
    if magic.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=packed)
    if magic.startswith(XZ_MAGIC):
        import lzma  # some builds of Python lack it

        return lzma.LZMAFile(packed)
    import zstandard

    return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)


def _is_text(head: bytes) -> bool:
    """Whether what begins with ``head`` reads as text; a character may be cut at its end."""
    text = head.decode(errors="ignore")
    return len(text.encode()) > len(head) - 4 and all(letter.isprintable() or letter.isspace() for letter in text)


def _brief(text: str) -> str:
    """Return ``text`` for a message: one line, no control characters, not long."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: MAX_NAME + 1])
    return f"{shown[:MAX_NAME]}…" if len(text) > MAX_NAME else shown


class _Metered(io.RawIOBase):
    """Counts the bytes read, reports the total before they are used, and ends the reading at the limit."""

    def __init__(self, source: Any, limit: int, consumed: Consumed) -> None:
        self._source = source
        self._limit = limit
        self._consumed = consumed
        self.total = 0
        """Bytes so far."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from the source."""
        try:
            count = self._source.readinto(buffer) or 0
        except (MemoryError, SnapshotError):
            raise
        except Exception as error:  # gzip, zlib, zstd and xz each have errors of their own for damage
            raise SnapshotError(
                f"damaged gzip, zstd or xz ({_brief(str(error))})", remedy="copy the file again"
            ) from error
        self.total += count
        if self.total > self._limit:
            raise SnapshotError(f"more than the {format_size(self._limit)} allowed", remedy=ALLOW_MORE)
        self._consumed(self.total)
        return count


class _PlainValues(pickle.Unpickler):
    """An unpickler that builds builtin containers, strings and numbers, and refuses everything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        asked_for = f"{_brief(module)}.{_brief(name)}"
        if module.partition(".")[0] in _DATA_OF:
            raise SnapshotError(
                f"the pickle holds {asked_for}, and only plain lists, mappings, strings and numbers are allowed",
                remedy=f"{REMEDY}, with nothing added to it",
            )
        raise SnapshotError(
            f"the pickle asks for {asked_for}, which no memory snapshot needs",
            remedy="it may be malicious: do not unpickle it with anything else",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise SnapshotError(
            "the pickle refers to objects outside itself, which no memory snapshot does",
            remedy=REMEDY,
        )
