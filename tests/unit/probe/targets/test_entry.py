"""What an entry may be, that it is the checkout's own, and that today's oomscope is never the checkout's."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oomscope
from oomscope.errors import TargetError
from oomscope.probe.job import EntryTarget
from oomscope.probe.targets.harness import HarnessError, check_entry, forget, load_entry

MINE = "the_entry_"


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    yield
    for name in [name for name in sys.modules if name.startswith(MINE)]:
        del sys.modules[name]


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


identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.lists(identifiers, min_size=1, max_size=3), st.lists(identifiers, min_size=1, max_size=2))
def test_dotted_names_are_entries(module: list[str], function: list[str]) -> None:
    if module[0] == "oomscope":
        return
    check_entry(f"{'.'.join(module)}:{'.'.join(function)}")


@pytest.mark.parametrize("place", ["", "src/"])
def test_a_function_of_a_module_below_the_checkout_or_its_src(checkout, place: str) -> None:
    name = f"{MINE}pack"
    files = {
        f"{place}{name}/__init__.py": "",
        f"{place}{name}/train.py": "class Job:\n  @staticmethod\n  def build(ctx): return 7",
    }
    assert load_entry(checkout(files, f"{name}.train:Job.build"))(None) == 7


def test_the_next_checkout_is_read_anew(checkout) -> None:
    target = checkout({f"{MINE}a.py": "def f(ctx): return 1"}, f"{MINE}a:f")
    assert load_entry(target)(None) == 1
    checkout({f"{MINE}a.py": "def f(ctx): return 22"}, "")
    forget(target)
    assert load_entry(target)(None) == 22


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "the checkout has no module the_entry_m"),
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


def test_what_the_module_imports_in_vain_is_told_as_it_is(checkout) -> None:
    target = checkout({f"{MINE}m.py": f"import {MINE}gone"}, f"{MINE}m:f")
    with pytest.raises(ModuleNotFoundError, match=f"{MINE}gone"):
        load_entry(target)


def test_an_installed_module_does_not_stand_in_for_the_checkouts(checkout) -> None:
    with pytest.raises(TargetError, match="the checkout has no such module: it was found at"):
        load_entry(checkout({"README": ""}, "yaml:safe_load"))


def test_an_oomscope_in_the_checkout_is_neither_an_entry_nor_imported(checkout) -> None:
    with pytest.raises(HarnessError, match="never taken from the checkout"):
        check_entry("oomscope.model:build")
    files = {
        "oomscope/__init__.py": "raise AssertionError('the checkout\\'s own')",
        f"{MINE}m.py": "import oomscope\ndef f(ctx): return oomscope",
    }
    target = checkout(files, f"{MINE}m:f")
    assert load_entry(target)(None) is oomscope
    forget(target)
    assert sys.modules["oomscope"] is oomscope


def test_without_the_checkout_nothing_can_be_said_of_a_commit(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no such checkout"):
        load_entry(EntryTarget(entry="a:f", repo=str(tmp_path / "gone")))


def test_it_is_imported_from_the_folder_that_is_measured(checkout) -> None:
    files = {
        "the_entry_mono.py": "raise AssertionError",
        "lib/the_entry_mono.py": "def build(ctx): return 'the folder'",
    }
    target = replace(checkout(files, "the_entry_mono:build"), folder="lib")
    assert load_entry(target)(None) == "the folder"
    with pytest.raises(TargetError, match="gone: the checkout has no such folder"):
        load_entry(replace(target, folder="gone"))
