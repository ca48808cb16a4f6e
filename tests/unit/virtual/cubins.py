"""Makes machine code as compilers write it, without the code: kernels with their parameters, in fat binaries."""

from __future__ import annotations

import struct

ZSTD, EXACT = 0x8000, 0x100000


def cubin(kernels: dict[str, list[int]], *, registers: int = 40, shared: int = 0) -> bytes:
    """Return a cubin whose kernels have parameters of these sizes in bytes."""
    sections: list[tuple[str, int, int, bytes]] = [("", 0, 0, b"")]
    everywhere = b""
    for symbol, (name, sizes) in enumerate(kernels.items(), 7):
        everywhere += struct.pack("<BBHII", 4, 0x2F, 8, symbol, registers)
        info = struct.pack("<BBHI", 4, 0x37, 4, 130)
        for index in reversed(range(len(sizes))):  # as ptxas does: the last one first
            info += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, index, 0, sizes[index] << 18 | 0x1F000)
        info += struct.pack("<BBH", 3, 0x1B, 255)
        sections.append((f".nv.info.{name}", 0x70000000, 0, info))
        sections.append((f".text.{name}", 1, symbol, b"\0" * 16))
        if shared:
            sections.append((f".nv.shared.{name}", 8, 0, b"\0" * shared))
    sections.append((".nv.info", 0x70000000, 0, everywhere))
    names, offsets = b"", []
    for name, *_ in [*sections, (".shstrtab", 0, 0, b"")]:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    sections.append((".shstrtab", 3, 0, names))
    body, headers = b"", b""
    for (_, kind, info_word, data), offset in zip(sections, offsets, strict=True):
        headers += struct.pack("<IIQQQQIIQQ", offset, kind, 0, 0, 64 + len(body), len(data), 0, info_word, 1, 0)
        body += data
    identity = b"\x7fELF\2\1\1" + bytes(9)
    fields = (1, 190, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(sections), len(sections) - 1)
    return identity + struct.pack("<HHIQQQIHHHHHH", *fields) + body + headers


def image(capability: int, code: bytes, *, kind: int = 2, flags: int = 0, whole: int = 0) -> bytes:
    """Return one image of a fat binary; ``kind`` 1 is PTX, 2 machine code."""
    padded = code + bytes(-len(code) % 8)
    head = struct.pack(
        "<HHIQIIIIIIQQQ", kind, 0x101, 64, len(padded), len(code), 0, 0, capability, 64, 0, flags, 0, whole
    )
    return head + padded


def fat_binary(*images: bytes) -> bytes:
    """Return a fat binary of these images."""
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
