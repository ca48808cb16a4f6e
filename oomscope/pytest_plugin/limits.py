"""Reads the markers that limit memory: which metric, how many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import pytest

from oomscope.errors import InputError, UsageError
from oomscope.units import parse_size

Metric = Literal["reserved", "requested", "overhead"]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What one marker of a test says."""

    marker: str
    metric: Metric
    limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One marker."""

    name: str
    metrics: tuple[Metric, ...]
    """What it can limit; the first unless ``of`` says otherwise."""
    example: str
    meaning: str

    @property
    def registration(self) -> str:
        """The line of ``pytest --markers``."""
        choices = f", of={self.metrics[0]!r}" if len(self.metrics) > 1 else ""
        return f"{self.name}(size{choices}): {self.meaning}"

    def read(self, mark: pytest.Mark) -> Limit:
        """Return the limit that ``mark`` sets.

        Raises:
            InputError: its arguments cannot be understood.
        """
        if len(mark.args) != 1:
            raise InputError(f"takes one size, not {len(mark.args)}", remedy=f"write {self.example}")
        unknown = sorted(set(mark.kwargs) - ({"of"} if len(self.metrics) > 1 else set()))
        if unknown:
            raise InputError(f"has no argument {unknown[0]!r}", remedy=f"write {self.example}")
        metric = mark.kwargs.get("of", self.metrics[0])
        if metric not in self.metrics:
            raise InputError(
                f"of={metric!r} is nothing it limits", remedy=f"give {' or '.join(map(repr, self.metrics))}"
            )
        return Limit(marker=self.name, metric=metric, limit_bytes=self._size(mark.args[0]))

    def _size(self, given: object) -> int:
        if isinstance(given, bool) or not isinstance(given, (int, str)):
            raise InputError(f"{given!r} is not a size", remedy=f"write {self.example}")
        return parse_size(given)


KINDS: Final = (
    Kind(
        name="limit_gpu_memory",
        metrics=("reserved", "requested"),
        example='@pytest.mark.limit_gpu_memory("24 GiB")',
        meaning="fail the test if PyTorch's allocator holds more GPU memory than size (of='requested': asks for more)",
    ),
    Kind(
        name="limit_overhead",
        metrics=("overhead",),
        example='@pytest.mark.limit_overhead("2 GiB")',
        meaning="fail the test if the allocator's overhead, reserved less requested bytes, is more than size",
    ),
)
"""All markers, in the order in which they are checked."""


def limits_of(item: pytest.Item) -> tuple[Limit, ...]:
    """Return the limits of a test; of several markers of one name the closest counts.

    Raises:
        UsageError: a marker cannot be understood; names the test.
    """
    return tuple(_limits(item))


def _limits(item: pytest.Item) -> Iterator[Limit]:
    for kind in KINDS:
        mark = item.get_closest_marker(kind.name)
        if mark is None:
            continue
        try:
            yield kind.read(mark)
        except InputError as error:
            raise UsageError(f"marker {kind.name}: {error.message}", where=item.nodeid, remedy=error.remedy) from None
