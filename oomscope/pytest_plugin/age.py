"""Refuses a pytest that is too old for the plugin, in one line and before any test."""

from __future__ import annotations

import re
from typing import Final

import pytest

OLDEST_PYTEST: Final = (7, 0)
"""The first with ``pytest.StashKey``."""
OLDEST_PLUGGY: Final = (1, 2)
"""The first that knows ``hookimpl(wrapper=True)``."""


def refuse_older(pytest_version: str, pluggy_version: str) -> None:
    """Refuse versions that lack what the plugin is made of.

    Raises:
        pytest.UsageError: one of them is too old.
    """
    if _numbers(pytest_version) >= OLDEST_PYTEST and _numbers(pluggy_version) >= OLDEST_PLUGGY:
        return
    needed = ".".join(map(str, OLDEST_PYTEST)), ".".join(map(str, OLDEST_PLUGGY))
    raise pytest.UsageError(
        f"oomscope's plugin needs pytest {needed[0]} and pluggy {needed[1]} or newer, and these are pytest "
        f"{pytest_version} and pluggy {pluggy_version}; upgrade them, or leave the plugin out with -p no:oomscope"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, whatever follows them."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
