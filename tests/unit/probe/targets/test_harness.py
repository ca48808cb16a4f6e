"""What a harness or an entry may be, what it may import, and what is asked of it before any code under test runs."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

import oomscope
from oomscope.errors import TargetError
from oomscope.probe.job import EntryTarget, HarnessTarget
from oomscope.probe.targets.harness import (
    HarnessError,
    build_target,
    check_entry,
    check_harness,
    forget,
    harness_files,
    load_entry,
    load_setup,
)

MINE = "the_harness_"


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    yield
    for name in [name for name in sys.modules if name.startswith(("<oomscope", MINE))]:
        del sys.modules[name]


@pytest.fixture
def place(tmp_path: Path):
    """Write files and return the target of the harness among them."""

    def write(files: dict[str, str]) -> HarnessTarget:
        for name, text in {"repo/README": "", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return HarnessTarget(harness=str(tmp_path / "tools" / "harness.py"), repo=str(tmp_path / "repo"))

    return write


def says(target: HarnessTarget) -> object:
    """Return what the ``setup`` of these tests answers."""
    return load_setup(target)(None)


def test_a_harness_is_not_run_by_the_look_at_it(tmp_path: Path) -> None:
    harness = tmp_path / "harness.txt"
    harness.write_text("raise SystemExit('ran')\nx = '\\d'\n")
    check_harness(harness)


def test_the_checkout_and_installed_packages_win_over_modules_beside_the_harness(place) -> None:
    target = place(
        {
            "tools/harness.py": f"import {MINE}model, yaml\ndef setup(ctx): return {MINE}model.name, yaml.safe_load",
            f"tools/{MINE}model.py": "name = 'beside the harness'",
            f"repo/src/{MINE}model.py": "name = 'of the checkout'",
            "tools/yaml.py": "raise AssertionError('shadows an installed package')",
        }
    )
    assert says(target)[0] == "of the checkout"


def test_the_order_of_the_path(place) -> None:
    target = place({"tools/harness.py": "def setup(ctx): ...", "repo/src/x.py": ""})
    sys.path.insert(0, target.repo)
    load_setup(target)
    load_setup(target)
    tools = str(Path(target.harness).parent)
    assert sys.path[:2] == [target.repo, f"{target.repo}/src"]
    assert sys.path[-1] == tools
    assert sys.path.count(target.repo) == sys.path.count(tools) == 1


def test_forgetting_reads_harness_helper_and_checkout_anew(place) -> None:
    files = {
        "tools/harness.py": f"import {MINE}a, {MINE}b\ndef setup(ctx): return {MINE}a.n, {MINE}b.n",
        f"tools/{MINE}a.py": "n = 1",
        f"repo/{MINE}b.py": "n = 1",
    }
    target = place(files)
    assert says(target) == (1, 1)
    place({f"tools/{MINE}a.py": "n = 22", f"repo/{MINE}b.py": "n = 33"})
    forget(target)
    assert says(target) == (22, 33)


def test_an_environment_inside_the_checkout_is_not_forgotten() -> None:
    library = Path(sysconfig.get_path("purelib"))
    target = HarnessTarget(harness="/nowhere/harness.py", repo=str(library.parents[2]))
    before = {name for name in sys.modules if name.partition(".")[0] in {"pytest", "yaml", "oomscope", "json"}}
    forget(target)
    assert before <= set(sys.modules)


def test_files_of_a_harness_are_those_that_its_imports_reach(place, tmp_path: Path) -> None:
    place(
        {
            "tools/harness.py": "import a\nfrom pack.inner import x\ndef setup(ctx):\n    import late, torch",
            "tools/a.py": "import b.c, broken",
            "tools/b.py": "import a",
            "tools/broken.py": "def (",
            "tools/late.py": "from . import unrelated",
            "tools/unrelated.py": "",
            "tools/pack/__init__.py": "",
            "tools/pack/inner.py": "",
            "tools/pack/deep/other.py": "",
        }
    )
    tools = tmp_path / "tools"
    found = {str(path.relative_to(tools)) for path in harness_files(tools / "harness.py")}
    pack = {"pack/__init__.py", "pack/inner.py", "pack/deep/other.py"}
    assert found == {"harness.py", "a.py", "b.py", "broken.py", "late.py", *pack}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("Target(len, model=3)", "the model .* is an object of type int, not one model"),
        ("Target(len, model=[None])", "the model .* is nothing, not one model"),
        ("Target(len, model=torch.nn.Linear)", "the model .* is the class Linear itself"),
        ("Target(len, optimizer='sgd')", "the optimizer .* is an object of type str"),
        ("Target(len, optimizer=torch.optim.SGD)", "the optimizer .* is the class SGD itself"),
        ("wait", "runs nothing: it is a generator or a coroutine"),
        ("some", "runs nothing: it is a generator or a coroutine"),
    ],
)
def test_what_is_no_member_of_a_target_is_refused_by_name(place, returned: str, said: str) -> None:
    code = f"""
import torch
from oomscope import Target
async def wait(): pass
def some(): yield
def setup(ctx): return {returned}
"""
    target = place({"tools/harness.py": code})
    with pytest.raises(TargetError, match=said):
        build_target(load_setup(target), None, where=target.harness)


@pytest.fixture
def checkout(tmp_path: Path):
    """Write files of the checkout and return the target of an entry in it."""

    def write(files: dict[str, str], entry: str) -> EntryTarget:
        for name, text in files.items():
            path = tmp_path / "repo" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return EntryTarget(entry=entry, repo=str(tmp_path / "repo"))

    return write


@pytest.mark.parametrize("entry", ["", "a", "a:", ":f", "a.:f", "a:f()", "a b:f", "a:f:g", "a/b.py:f", "1a:f", "a:.f"])
def test_a_text_that_names_no_function_is_refused(entry: str) -> None:
    with pytest.raises(HarnessError, match="is not an entry"):
        check_entry(entry)


@pytest.mark.parametrize("place", ["", "src/"])
def test_a_function_of_a_module_below_the_checkout_or_its_src(checkout, place: str) -> None:
    name = f"{MINE}pack"
    files = {
        f"{place}{name}/__init__.py": "",
        f"{place}{name}/train.py": "class Job:\n  @staticmethod\n  def build(ctx): return 7",
    }
    assert load_entry(checkout(files, f"{name}.train:Job.build"))(None) == 7


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "the checkout has no module the_harness_m"),
        ("", "the module has no f"),
        ("f = 3", "f cannot be called with ctx alone"),
        ("def f(): ...", "f cannot be called with ctx alone"),
        ("def f(ctx, more): ...", "f cannot be called with ctx alone"),
    ],
)
def test_what_a_commit_lacks_is_its_own_fault(checkout, source: str | None, said: str) -> None:
    target = checkout({"README": "", **({} if source is None else {f"{MINE}m.py": source})}, f"{MINE}m:f")
    with pytest.raises(TargetError, match=said):
        load_entry(target)


def test_an_installed_module_does_not_stand_in_for_the_checkouts(checkout) -> None:
    with pytest.raises(TargetError, match="the checkout has no such module: it was found at"):
        load_entry(checkout({"README": ""}, "yaml:safe_load"))


def test_an_oomscope_in_the_checkout_is_neither_an_entry_nor_imported(checkout) -> None:
    with pytest.raises(HarnessError, match="never imported from the checkout"):
        check_entry("oomscope.model:build")
    files = {
        "oomscope/__init__.py": "raise AssertionError('the checkout\\'s own')",
        f"{MINE}m.py": "import oomscope\ndef f(ctx): return oomscope",
    }
    target = checkout(files, f"{MINE}m:f")
    assert load_entry(target)(None) is oomscope
    forget(target)
    assert sys.modules["oomscope"] is oomscope


def test_it_is_imported_from_the_folder_that_is_measured(checkout) -> None:
    files = {
        "the_harness_mono.py": "raise AssertionError",
        "lib/the_harness_mono.py": "def build(ctx): return 'the folder'",
    }
    target = replace(checkout(files, "the_harness_mono:build"), folder="lib")
    assert load_entry(target)(None) == "the folder"
    with pytest.raises(TargetError, match="gone: the checkout has no such folder"):
        load_entry(replace(target, folder="gone"))
