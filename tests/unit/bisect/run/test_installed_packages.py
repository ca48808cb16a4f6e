"""The hash of what is installed changes with every version, and with the code of an editable package."""

from __future__ import annotations

import json
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from oomscope.bisect.run.identity import editable_root, hash_of


class Installed(Distribution):
    def __init__(self, name: str, version: str = "1", origin: object = None) -> None:
        self.files_of = {"METADATA": f"Name: {name}\nVersion: {version}\n"}
        if origin is not None:
            self.files_of["direct_url.json"] = origin if isinstance(origin, str) else json.dumps(origin)

    def read_text(self, filename: str) -> str | None:
        return self.files_of.get(filename)

    def locate_file(self, path):
        raise NotImplementedError


def editable(root: Path, name: str = "acme") -> Installed:
    return Installed(name, origin={"url": root.as_uri(), "dir_info": {"editable": True}})


def test_versions_count_and_order_does_not() -> None:
    a, b = Installed("a"), Installed("B")
    assert hash_of([a, b]) == hash_of([b, a]) == hash_of([a, b, a])
    assert hash_of([a, Installed("b", "2")]) != hash_of([a, b])


def test_the_code_of_an_editable_package_counts(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    for folder in ("acme", ".git", "env", "data"):
        (root / folder).mkdir(parents=True)
    (root / "env" / "pyvenv.cfg").touch()
    code = root / "acme" / "model.py"
    code.write_text("batch = 1")
    before = hash_of([editable(root)])
    for other in (root / ".git" / "a.py", root / "env" / "a.py", root / "data" / "report.html"):
        other.write_text("changes nothing that can be imported")
    (root / "dangling.py").symlink_to("nowhere")
    assert hash_of([editable(root)]) == before
    code.write_text("batch = 2")
    assert hash_of([editable(root)]) != before
    assert hash_of([editable(root, "oomscope")]) == hash_of([Installed("oomscope")])


@pytest.mark.parametrize(
    "origin",
    [None, {"url": "file:///src", "dir_info": {}}, {"url": "https://example.org/a.whl"}, {"dir_info": []}, "{", "[]"],
)
def test_other_packages_have_no_folder(origin: object) -> None:
    assert editable_root(Installed("acme", origin=origin)) is None
