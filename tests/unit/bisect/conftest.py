"""What the searches of the tests go over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.bisect.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A repository without commits, a harness and a probe that reads a number out of the checkout."""
    return World(tmp_path)
