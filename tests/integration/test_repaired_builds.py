"""The installed program, where some commits need a repair and each has to be installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.program import commit, git, new_repo, oomscope

MEASURE = """\
import importlib.metadata
from pkg.sizes import MEBIBYTES

assert importlib.metadata.version("pkg") == "1.0", "installed into the checkout"
print("peak", MEBIBYTES, "MiB")
"""
PROJECT = """\
from setuptools import setup
from setuptools.command.egg_info import egg_info
from pathlib import Path

class Generate(egg_info):
    def run(self):
        Path("pkg/sizes.py").write_text(f"MEBIBYTES = {int(Path('pkg/size.in').read_text())}\\n")
        super().run()

setup(name="pkg", version="1.0", packages=["pkg"], cmdclass={"egg_info": Generate})
"""
PATCH = """\
--- a/pkg/__init__.py
+++ b/pkg/__init__.py
@@ -1 +1 @@
-import gone
+pass
"""


def test_the_culprit_among_commits_that_are_repaired_and_installed(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    repo = new_repo(tmp_path / "it's a répo")
    start = {
        "setup.py": PROJECT,
        ".gitignore": "pkg/sizes.py\n*.egg-info\n",
        "pkg/__init__.py": "",
        "pkg/size.in": "10",
        "measure.py": MEASURE,
    }
    first = commit(repo, "start", start)
    broken = commit(repo, "break", {"pkg/__init__.py": "import gone\n"})
    commit(repo, "words", {"README": ""})
    culprit = commit(repo, "grow", {"pkg/size.in": "300"})
    mended = commit(repo, "mend", {"pkg/__init__.py": ""})
    (repo / "pkg/size.in").write_text("being edited")
    (tmp_path / "mend.patch").write_text(PATCH)
    before = git(repo, "status", "--porcelain"), oomscope("version", "--json").stdout

    done = oomscope(
        *("bisect", f"{first}..main", "--repo", repo, "--command", "python measure.py", "--json"),
        *("--metric-regex", r"peak (\d+ \w+)", "--bad", "requested>256MiB", "--state", tmp_path / "state"),
        *("--fixup", f"{first}..{mended}~1: {tmp_path / 'mend.patch'}"),
        *("--setup", "pip install --no-deps --no-build-isolation -e ."),
    )

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["culprit"]["commit"] == culprit, document["message"]
    assert [row["answer"] for row in document["probes"]].count("untestable") == 0
    assert broken != culprit
    assert (git(repo, "status", "--porcelain"), oomscope("version", "--json").stdout) == before
    assert not list(Path(sys.prefix).glob("lib/python*/site-packages/*pkg-1.0*")), "the environment stays as it was"
    assert not list((tmp_path / "state/checkouts").iterdir())
