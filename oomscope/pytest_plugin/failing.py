"""How an error of oomscope's ends a test: in two lines, without a traceback through what the user did not write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oomscope.errors import OomscopeError


@contextmanager
def one_failure(heading: str) -> Iterator[None]:
    """Fail the running test with ``heading`` and the error where the block raises one of oomscope's."""
    try:
        yield
    except OomscopeError as error:
        raise pytest.fail.Exception(f"{heading}\n{error}", pytrace=False) from None
