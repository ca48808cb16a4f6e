"""What a snapshot file says as flat columns of integers plus a few plain values: the form that crosses a pipe.

A file is read in a process of its own (:mod:`oomscope.snapshot.read.child`), which needs neither numpy nor trust.
What it hands back are these tables: strings, frames and stacks stored once and named by number, everything else in
arrays.
"""

from __future__ import annotations

import json
from array import array
from typing import Any, BinaryIO, Final, TypeAlias

MAGIC: Final = b"oomscope-tables1"
_LENGTH_BYTES: Final = 8

Column: TypeAlias = "array[int]"


class Tables:
    """Columns and values by dotted name, such as ``segments.address``.

    Values are what JSON can say: the texts, the allocator's settings, the list of traces, what was missing.
    """

    def __init__(self, columns: dict[str, Column], values: dict[str, Any]) -> None:
        self.columns = columns
        self.values = values

    def write(self, file: BinaryIO) -> None:
        """Write the tables as one message: magic, length of a JSON head, the head, the columns as they lie."""
        shapes = [(name, column.typecode, len(column)) for name, column in self.columns.items()]
        head = json.dumps({"values": self.values, "columns": shapes}).encode("ascii")
        file.write(MAGIC + len(head).to_bytes(_LENGTH_BYTES, "little") + head)
        file.writelines(memoryview(column) for column in self.columns.values())
        file.flush()

    @classmethod
    def read(cls, file: BinaryIO) -> Tables:
        """Return the tables of a message that :meth:`write` wrote on the same machine.

        Raises:
            EOFError: the writer ended before its message did.
        """
        start = file.read(len(MAGIC) + _LENGTH_BYTES)
        if len(start) < len(MAGIC) + _LENGTH_BYTES or not start.startswith(MAGIC):
            raise EOFError
        length = int.from_bytes(start[len(MAGIC) :], "little")
        text = file.read(length)
        if len(text) < length:
            raise EOFError
        head = json.loads(text)
        columns = {name: _column(file, typecode, count) for name, typecode, count in head["columns"]}
        return cls(columns, head["values"])


def _column(file: BinaryIO, typecode: str, count: int) -> Column:
    column = array(typecode)
    try:
        column.frombytes(file.read(count * column.itemsize))
    except ValueError as error:
        raise EOFError from error
    if len(column) < count:
        raise EOFError
    return column
