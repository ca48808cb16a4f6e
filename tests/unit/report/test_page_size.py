"""A page shows as much as fits in its bytes, and no page is drawn again once it fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.html import page as page_size
from oomscope.report.html.page import LARGEST, SHARES, fitting


@given(st.integers(0, 4 * LARGEST), st.integers(0, LARGEST))
def test_the_largest_share_that_fits_is_taken(detail, rest):
    sizes = [rest + int(detail * share) for share in SHARES]
    expected = next((size for size in sizes if size <= LARGEST), sizes[-1])
    assert len(fitting(lambda share: "x" * (rest + int(detail * share)))) == expected


@pytest.mark.parametrize(("size", "drawn"), [(10, 1), (11, 2), (20, 2), (10_000, len(SHARES))])
def test_pages_are_drawn_until_one_fits(monkeypatch, size, drawn):
    monkeypatch.setattr(page_size, "LARGEST", 10)
    shares = []

    def page(share: float) -> str:
        shares.append(share)
        return "x" * int(size * share)

    fitting(page)
    assert shares == list(SHARES[:drawn])


def test_bytes_count_not_letters(monkeypatch):
    monkeypatch.setattr(page_size, "LARGEST", 10)
    assert fitting(lambda share: "→" * int(4 * share)) == "→" * 2
