"""Bytes in and out of text. Inside oomscope a size is an ``int`` of bytes; people see KiB, MiB and so on."""

from __future__ import annotations

import re

from oomscope.errors import InputError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB
PiB = 1024 * TiB
EiB = 1024 * PiB

_FACTORS = {
    "": 1,
    "b": 1,
    "k": KiB,
    "kib": KiB,
    "kb": 1000,
    "m": MiB,
    "mib": MiB,
    "mb": 1000**2,
    "g": GiB,
    "gib": GiB,
    "gb": 1000**3,
    "t": TiB,
    "tib": TiB,
    "tb": 1000**4,
    "p": PiB,
    "pib": PiB,
    "pb": 1000**5,
    "e": EiB,
    "eib": EiB,
    "eb": 1000**6,
}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:[_,]\d{3})*(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*")


def parse_size(text: str | int, *, where: str | None = None) -> int:
    """Return the bytes that ``text`` names.

    ``80GiB``, ``80 GiB`` and ``80G`` are binary, ``80GB`` is decimal, a bare number is bytes.

    Raises:
        InputError: the text is not a size, or not a whole number of bytes.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise InputError(f"{text} is not a size", where=where, remedy="give a size such as 80GiB")
        return text
    match = _SIZE.fullmatch(str(text))
    unit = match["unit"].lower() if match else None
    if match is None or unit not in _FACTORS:
        raise InputError(f"{text!r} is not a size", where=where, remedy="give a size such as 80GiB, 512MiB or 1048576")
    number = match["number"].replace("_", "").replace(",", "")
    whole, _, fraction = number.partition(".")
    scaled = int(whole + fraction) * _FACTORS[unit]
    return scaled // int("1" + "0" * len(fraction))


def format_size(size: int, *, digits: int = 2, signed: bool = False) -> str:
    """Return ``size`` bytes for people: ``79.10 GiB``, ``512 B``; with ``signed`` a ``+`` before growth."""
    sign = "-" if size < 0 else "+" if signed and size > 0 else ""
    magnitude = abs(size)
    for factor, unit in ((EiB, "EiB"), (PiB, "PiB"), (TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if magnitude >= factor:
            return f"{sign}{magnitude / factor:.{digits}f} {unit}"
    return f"{sign}{magnitude} B"
