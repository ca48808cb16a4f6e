"""Recorded paths are looked up inside the checkout, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.snapshot.compare.sources import LARGEST_FILE, SourceTree


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    checkout = tmp_path / "checkout"
    (checkout / "train").mkdir(parents=True)
    (checkout / "model.py").write_text("outer\n")
    (checkout / "train" / "model.py").write_text("inner\n")
    (checkout / "binary.py").write_bytes(b"\xff\xfe\x00")
    (checkout / "huge.py").write_bytes(b" " * (LARGEST_FILE + 1))
    (tmp_path / "secret.py").write_text("secret\n")
    (checkout / "link.py").symlink_to(tmp_path / "secret.py")
    return SourceTree(checkout)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/ada/job/train/model.py", ["inner"]),
        ("/home/ada/job/model.py", ["outer"]),
        ("model.py", ["outer"]),
        ("C:\\job\\train\\model.py", ["inner"]),
        ("/home/ada/loss.py", None),
        ("/x/../../secret.py", None),
        ("/x/link.py", None),
        ("/x/binary.py", None),
        ("/x/huge.py", None),
        ("/x/train", None),
        ("??", None),
        ("", None),
        ("/x/a\0b.py", None),
        ("/x/" + "y" * 5000 + "/model.py", ["outer"]),
    ],
)
def test_the_longest_end_that_exists_counts(tree: SourceTree, file: str, expected: list[str] | None) -> None:
    assert tree(file) == expected
