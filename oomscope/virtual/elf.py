"""Reads the dynamic section of 64-bit ELF libraries: name, needed libraries, required and exported symbols.

Only tables that the dynamic loader itself uses are read (System V ABI, "Dynamic Linking"; symbol versions: Linux
Standard Base, "Symbol Versioning"), so that a stripped library reads like any other. Of torch's gigabyte some hundred
kilobytes are touched: undefined symbols stand in front of those that the GNU hash table holds.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MACHINES = {62: "x86_64", 183: "aarch64"}
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 6, 10, 14, 15, 29
_GNU_HASH, _VERSYM, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
_SYMBOL_BYTES = 24
_WEAK = 2
_LOCAL_VERSIONS = 2
"""Version indices below this are "local" and "global", which name no version."""


@dataclass(frozen=True)
class Symbol:
    """A function or object that a library requires from others."""

    name: str
    version: str = ""
    """Version that the library must have; empty for any."""
    library: str = ""
    """The soname that the version belongs to; empty for any."""
    is_weak: bool = False
    """Whether the library works without it."""


@dataclass(frozen=True)
class Elf:
    """What the dynamic loader knows of one library."""

    machine: str
    """Name of the machine, as in ``uname -m``."""
    soname: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    """Folders in which its needs are looked for first; ``$ORIGIN`` is the library's own."""
    wanted: tuple[Symbol, ...]
    exported: frozenset[str]
    """Exported names without versions. Empty unless asked for."""


def read_elf(path: Path, *, exports: bool = False) -> Elf:
    """Return the dynamic tables of the library at ``path``.

    Args:
        path: a shared library for a 64-bit little-endian machine.
        exports: also read the names that it offers.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such library, or a damaged one.
    """
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            raise ValueError(f"{path}: not a 64-bit little-endian ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(content).read(exports=exports)
            except (struct.error, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}: damaged ELF file ({error})") from error


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        start, entry_bytes, count = self._at("<Q", 32)[0], *self._at("<HH", 54)
        # type, flags, offset, address, physical address, bytes in the file, bytes in memory, alignment
        headers = [self._at("<IIQQQQQQ", start + index * entry_bytes) for index in range(count)]
        self._segments = [(header[3], header[5], header[2]) for header in headers if header[0] == _LOAD]
        self._tags: dict[int, int] = {}
        self._needed: list[int] = []
        for header in headers:
            if header[0] == _DYNAMIC:
                self._read_dynamic(header[2], header[5])
        if _SYMTAB not in self._tags or _STRTAB not in self._tags:
            raise IndexError("no dynamic symbols")
        begin = self._place(self._tags[_STRTAB])
        self._strings = content[begin : begin + self._tags[_STRSZ]]

    def read(self, *, exports: bool) -> Elf:
        soname = self._string(self._tags[_SONAME]) if _SONAME in self._tags else ""
        first = self._first_hashed()
        return Elf(
            machine=_MACHINES[self._at("<H", 18)[0]],
            soname=soname,
            needed=tuple(self._string(offset) for offset in self._needed),
            search_path=self._search_path(),
            wanted=tuple(self._wanted(first)),
            exported=frozenset(self._exported(first)) if exports else frozenset(),
        )

    def _search_path(self) -> tuple[str, ...]:
        tag = _RUNPATH if _RUNPATH in self._tags else _RPATH
        return tuple(self._string(self._tags[tag]).split(":")) if tag in self._tags else ()

    def _at(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(layout, self._content, offset)

    def _read_dynamic(self, offset: int, size: int) -> None:
        for tag, value in struct.iter_unpack("<qQ", self._content[offset : offset + size]):
            if tag == 0:
                break
            if tag == _NEEDED:
                self._needed.append(value)
            else:
                self._tags[tag] = value

    def _place(self, address: int) -> int:
        """Return the offset in the file of what is mapped at ``address``."""
        for begin, size, offset in self._segments:
            if begin <= address < begin + size:
                return address - begin + offset
        raise IndexError(f"address {address:#x} is in no segment")

    def _string(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset)
        if not 0 <= offset < len(self._strings) or end < 0:
            raise IndexError(f"string {offset} is outside the table")
        return self._strings[offset:end].decode()

    def _first_hashed(self) -> int:
        """Return the index of the first symbol in the hash table, which is behind all undefined ones."""
        if _GNU_HASH not in self._tags:
            raise IndexError("no GNU hash table")
        return self._at("<I", self._place(self._tags[_GNU_HASH]) + 4)[0]

    def _symbols(self, first: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield index and entry (name, info, other, section, value, size) of symbols."""
        begin = self._place(self._tags[_SYMTAB])
        table = self._content[begin + first * _SYMBOL_BYTES : begin + end * _SYMBOL_BYTES]
        if len(table) != (end - first) * _SYMBOL_BYTES:
            raise IndexError("the symbols end too early")
        yield from enumerate(struct.iter_unpack("<IBBHQQ", table), first)

    def _wanted(self, end: int) -> Iterator[Symbol]:
        versions = self._versions()
        at = self._place(self._tags[_VERSYM]) if _VERSYM in self._tags else None
        for index, (name, info, _, section, _, _) in self._symbols(1, end):
            if section:
                continue
            number = 0 if at is None else self._at("<H", at + 2 * index)[0] & 0x7FFF
            version, library = versions[number] if number >= _LOCAL_VERSIONS else ("", "")
            yield Symbol(self._string(name), version, library, is_weak=info >> 4 == _WEAK)

    def _versions(self) -> dict[int, tuple[str, str]]:
        """Return version and soname by version index, of what is wanted from others."""
        found: dict[int, tuple[str, str]] = {}
        if _VERNEED not in self._tags:
            return found
        offset = self._place(self._tags[_VERNEED])
        for _ in range(self._tags[_VERNEEDNUM]):
            _, count, library, first, step = self._at("<HHIII", offset)
            entry = offset + first
            for _ in range(count):
                _, _, number, version, next_entry = self._at("<IHHII", entry)
                found[number & 0x7FFF] = (self._string(version), self._string(library))
                entry += next_entry
            if not step:
                break
            offset += step
        return found

    def _exported(self, first: int) -> Iterator[str]:
        for _, (name, *_) in self._symbols(first, self._symbol_count(first)):
            yield self._string(name)

    def _symbol_count(self, first: int) -> int:
        """Return how many symbols there are: the end of the last chain of the GNU hash table."""
        table = self._place(self._tags[_GNU_HASH])
        buckets, _, bloom_words, _ = self._at("<IIII", table)
        begin = table + 16 + 8 * bloom_words
        last = max(self._at(f"<{buckets}I", begin), default=0)
        if last < first:
            return first
        chains = begin + 4 * buckets
        while not self._at("<I", chains + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1
