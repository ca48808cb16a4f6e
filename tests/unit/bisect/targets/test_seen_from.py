"""A path in a command holds in other checkouts where it can, and is whole where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.targets.subjects import seen_from


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [
        ("/builds/1/repo", "/builds/1/repo", "."),
        ("/builds/1/repo", "/builds/1/repo/ci/harness.py", "ci/harness.py"),
        ("/builds/1/repo", "/builds/1/model", "../model"),
        ("/builds/1/repo", "/builds/2/model", "/builds/2/model"),
        ("/repo", "/repo/ci/harness.py", "ci/harness.py"),
        ("/repo", "/opt/model", "/opt/model"),
        (None, "/repo/ci", "/repo/ci"),
    ],
)
def test_what_lies_in_or_beside_a_checkout_is_seen_from_it(root: str | None, path: str, seen: str) -> None:
    assert seen_from(None if root is None else Path(root), Path(path)) == seen
