"""Files of packages: requirements, lock files in TOML, and formats that are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.changes.lock_files import PackageList, is_readable, read_both, read_packages
from oomscope.errors import InputError


def written(tmp_path: Path, text: str, name: str = "lock") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_requirements(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "# made by a tool\n--index-url https://example.org/simple\n-e git+https://example.org/x#egg=x\n"
        "Flash_Attn==2.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via x\n"
        "einops[all]==0.7.0 ; python_version >= '3.11'\nmine @ file:///w/mine-1.0.whl\n\nnumpy==2.0.0  # why\n"
        "pywin32==306 ; sys_platform == 'win32'\n",
    )
    assert read_packages(file).requirements == {
        "flash-attn": "Flash_Attn==2.0",
        "einops": "einops[all]==0.7.0 ; python_version >= '3.11'",
        "mine": "mine @ file:///w/mine-1.0.whl",
        "numpy": "numpy==2.0.0",
    }


@pytest.mark.parametrize(
    ("text", "words"), [("numpy\n==1\n", ":2: '==1' is not a requirement"), ("-r base.txt\n", ":1: names another file")]
)
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_packages(written(tmp_path, text))


def test_a_lock_file_of_uv(tmp_path: Path) -> None:
    text = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "train"
version = "0.1.0"
source = { editable = "." }
dependencies = [
    { name = "Mem_Lib" },
    { name = "sibling" },
    { name = "fork" },
    { name = "colorama", marker = "sys_platform == 'win32'" },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "Mem_Lib"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
sdist = { url = "https://example.org/mem_lib-1.0.tar.gz", hash = "sha256:aa" }

[[package]]
name = "colorama"
version = "0.4"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "of-colorama" }]

[[package]]
name = "of-colorama"
version = "1"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "pytest"
version = "8.2"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "fork"
version = "1"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "fork"
version = "2"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "sibling"
version = "3"
source = { git = "https://example.org/sibling?rev=main#0123" }
"""
    assert read_packages(written(tmp_path, text)) == PackageList(
        {"mem-lib": "mem-lib==1.0", "pytest": "pytest==8.2"}, {"fork": "several versions", "sibling": "git"}
    )


def test_a_lock_file_of_poetry(tmp_path: Path) -> None:
    text = """
[[package]]
name = "memlib"
version = "1.0"
groups = ["main"]

[package.dependencies]
colorama = {version = "*", markers = "sys_platform == 'win32'"}

[[package]]
name = "colorama"
version = "0.4"
groups = ["main"]
markers = "sys_platform == 'win32'"

[[package]]
name = "ours"
version = "2.0"
[package.source]
type = "legacy"
url = "https://example.org/simple"

[[package]]
name = "beside"
version = "1"
[package.source]
type = "directory"
url = "../beside"

[metadata]
lock-version = "2.1"
"""
    found = read_packages(written(tmp_path, text))
    assert found == PackageList({"memlib": "memlib==1.0", "ours": "ours==2.0"}, {"beside": "directory"})


def test_packages_of_extras_count_but_for_another_machine(tmp_path: Path) -> None:
    markers = {
        "gpulib": 'extra == "gpu"',
        "winlib": 'extra == "gpu" and sys_platform == "win32"',
        "cpulib": 'extra == "cpu" and extra != "gpu"',
    }
    tables = (
        f"[[package]]\nname = '{name}'\nversion = '1'\nmarkers = '{marker}'\n" for name, marker in markers.items()
    )
    found = read_packages(written(tmp_path, "\n".join(tables)))
    assert found == PackageList({"gpulib": "gpulib==1", "cpulib": "cpulib==1"}, {})


def test_pylock_toml(tmp_path: Path) -> None:
    text = """
lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "memlib"
version = "1.0"
index = "https://pypi.org/simple"

[[packages]]
name = "colorama"
version = "0.4"
marker = "sys_platform == 'win32'"

[[packages]]
name = "me"
directory = { path = ".", editable = true }

[[packages]]
name = "sibling"
vcs = { type = "git", url = "https://example.org/sibling", commit-id = "0123" }

[[packages]]
name = "nameless"
"""
    found = read_packages(written(tmp_path, text))
    assert found == PackageList({"memlib": "memlib==1.0"}, {"sibling": "vcs", "nameless": "no version"})


def test_what_one_side_has_no_version_of_is_compared_on_neither(tmp_path: Path) -> None:
    good = written(tmp_path, "torch==2.13.0\nmemlib==1.0\n", "good.txt")
    bad = written(tmp_path, '[[package]]\nname = "torch"\n\n[[package]]\nname = "memlib"\nversion = "2.0"\n', "uv.lock")
    both = read_both(good, bad)
    assert both == ({"memlib": "memlib==1.0"}, {"memlib": "memlib==2.0"}, ("torch (no version)",))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "Pipfile.lock",
            '{"default": {"memlib": {"version": "==1.0"}}}',
            "Pipfile.lock is not supported.*pipenv requirem",
        ),
        ("pixi.lock", "version: 6\nenvironments:\n  default:\n", "pixi.lock is not supported.*pip freeze"),
        ("environment.yml", "name: x\ndependencies:\n- numpy=1\n", "a conda file is not supported.*pip freeze"),
        ("pyproject.toml", '[project]\nname = "x"\n', "pyproject.toml is not supported.*uv export --no-hashes"),
        ("63", '{"default": {}}', "Pipfile.lock is not supported"),
        ("uv.lock", '[[package]]\nname = "x\n', "is not TOML.*pip freeze"),
        ("Cargo.lock", '[[package]]\nname = "x"\nversion = "1"\nsource = "registry+x"\n', "not a lock file of Python"),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_packages(written(tmp_path, text, name))
    assert caught.match(words.partition(".*")[0])
    assert words.partition(".*")[2] in f"{caught.value} {caught.value.remedy}"


@pytest.mark.parametrize(
    ("path", "readable"),
    [
        ("uv.lock", True),
        ("a/old.poetry.lock", True),
        ("pylock.dev.toml", True),
        ("requirements-dev.txt", True),
        ("requirements/train.txt", True),
        ("requirements.lock", True),
        ("pixi.lock", False),
        ("Pipfile.lock", False),
        ("pyproject.toml", False),
        ("environment.yml", False),
    ],
)
def test_which_files_can_be_read(path: str, readable: bool) -> None:
    assert is_readable(path) == readable
