from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import InputError
from oomscope.pytest_plugin.limits import KINDS, Limit
from oomscope.units import GiB, MiB, format_size

MEMORY, OVERHEAD = KINDS


def mark(name: str, *args: object, **kwargs: object) -> pytest.Mark:
    return getattr(pytest.mark, name)(*args, **kwargs).mark


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "metric", "size"),
    [
        (MEMORY, ("24 GiB",), {}, "reserved", 24 * GiB),
        (MEMORY, (24 * GiB,), {}, "reserved", 24 * GiB),
        (MEMORY, ("24 GB",), {"of": "requested"}, "requested", 24 * 10**9),
        (OVERHEAD, ("2 GiB",), {}, "overhead", 2 * GiB),
        (OVERHEAD, (0,), {}, "overhead", 0),
    ],
)
def test_read(kind, arguments, options, metric: str, size: int) -> None:
    limit = kind.read(mark(kind.name, *arguments, **options))
    assert limit == Limit(marker=kind.name, metric=metric, limit_bytes=size)


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "complaint"),
    [
        (MEMORY, (), {}, "takes one size, not 0"),
        (MEMORY, ("1 GiB", "2 GiB"), {}, "takes one size, not 2"),
        (MEMORY, ("24 Gib b",), {}, "is not a size"),
        (MEMORY, (24.5,), {}, "24.5 is not a size"),
        (MEMORY, (True,), {}, "True is not a size"),
        (MEMORY, (None,), {}, "None is not a size"),
        (MEMORY, (-1,), {}, "-1 is not a size"),
        (MEMORY, ("1 GiB",), {"of": "active"}, "of='active' is nothing it limits; give 'reserved' or 'requested'"),
        (MEMORY, ("1 GiB",), {"metric": "requested"}, "has no argument 'metric'"),
        (OVERHEAD, ("1 GiB",), {"of": "requested"}, "has no argument 'of'"),
    ],
)
def test_refused(kind, arguments, options, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        kind.read(mark(kind.name, *arguments, **options))
    assert complaint in str(refused.value)


@given(st.integers(0, 2**60))
def test_sizes_are_exact(size: int) -> None:
    assert MEMORY.read(mark(MEMORY.name, size)).limit_bytes == size
    assert MEMORY.read(mark(MEMORY.name, f"{size} B")).limit_bytes == size


@given(st.integers(0, 4096))
def test_a_limit_reads_as_reports_write_it(mebibytes: int) -> None:
    text = format_size(mebibytes * MiB, digits=10)
    assert MEMORY.read(mark(MEMORY.name, text)).limit_bytes == mebibytes * MiB
