"""Bytes in and out of text. Inside oomscope a size is an ``int`` of bytes; people see KiB, MiB and so on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oomscope.errors import InputError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB
PiB = 1024 * TiB
EiB = 1024 * PiB

_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtpe", start=1):
    _FACTORS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}
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


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Requested and reserved bytes of a run, or the difference of two runs."""

    requested_bytes: int = 0
    """Most requested bytes alive at once."""
    reserved_bytes: int | None = 0
    """Most that the caching allocator held; None where that is not known, in what is summed from it too."""

    @property
    def overhead_bytes(self) -> int | None:
        """What was reserved beyond the requested bytes: rounding, fragments and cache; None where that is not known."""
        return None if self.reserved_bytes is None else self.reserved_bytes - self.requested_bytes

    @property
    def is_nothing(self) -> bool:
        """Whether all numbers that are known are 0."""
        return not self.requested_bytes and not self.reserved_bytes

    def __sub__(self, other: Bytes) -> Bytes:
        return self + Bytes(
            requested_bytes=-other.requested_bytes,
            reserved_bytes=None if other.reserved_bytes is None else -other.reserved_bytes,
        )

    def __add__(self, other: Bytes) -> Bytes:
        are_known = self.reserved_bytes is not None and other.reserved_bytes is not None
        return Bytes(
            requested_bytes=self.requested_bytes + other.requested_bytes,
            reserved_bytes=(self.reserved_bytes or 0) + (other.reserved_bytes or 0) if are_known else None,
        )


def format_apart(one: int, other: int) -> tuple[str, str]:
    """Return two sizes that differ for people: in bytes where they round to the same."""
    texts = format_size(one), format_size(other)
    return texts if texts[0] != texts[1] else (f"{one:,} bytes", f"{other:,} bytes")
