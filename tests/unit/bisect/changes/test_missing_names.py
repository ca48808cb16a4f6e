"""Which changed files need each other by the name that a failed run lacked."""

from __future__ import annotations

import pytest

from oomscope.bisect.changes.missing_names import missing_name, needs_by_name
from oomscope.bisect.vcs.patches import Hunk

Needs = dict[str, set[str]]
UNEXPECTED = "TypeError: sample() got an unexpected keyword argument 'times'"
OF_A_CLASS = "TypeError: Wide.__init__() got an unexpected keyword argument 'times'"
NOT_GIVEN = "TypeError: sample() missing 1 required positional argument: 'times'"
IMPORT = "ImportError: cannot import name 'ROWS' from 'tiny.conf' (tiny/conf.py)"
ATTRIBUTE = "AttributeError: module 'tiny.conf' has no attribute 'ROWS'"
MEMBER = "AttributeError: 'Wide' object has no attribute 'rows'"
MODULE = "ModuleNotFoundError: No module named 'tiny.conf'"
GLOBAL = "NameError: name 'ROWS' is not defined"


def needs(reason: str, files: dict[str, tuple[str | None, str | None]]) -> Needs:
    """Return what the change of each of ``files`` needs, where each is one piece."""
    paths = list(files)
    hunks = [
        Hunk(path=path, header=b"", body=f"-{before}\n+{after}\n".encode(), is_whole=True)
        for path, (before, after) in files.items()
    ]

    def sources(path: str) -> tuple[bytes | None, bytes | None]:
        before, after = files[path]
        return before and before.encode(), after and after.encode()  # type: ignore[return-value]

    missing = missing_name(reason)
    assert missing is not None
    found = needs_by_name(hunks, missing, sources)
    return {paths[hunk]: {paths[other] for other in needed} for hunk, needed in found.items()}


def test_callers_need_the_signature_and_nothing_needs_what_only_mentions_the_argument() -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "docs/use.md": ("How.", "Pass `times=2`."),
        "lib.py": ("def sample(n): return n", "def sample(n, times=1): return n * times"),
        "other.py": ("x = 1", "times = 3"),
        "tests/test_lib.py": ("sample(1)", "sample(1, times=2)"),
        "train.py": ("sample(64)", "sample(64, times=512)"),
    }
    assert needs(UNEXPECTED, files) == {"tests/test_lib.py": {"lib.py"}, "train.py": {"lib.py"}}
    back = {path: (after, before) for path, (before, after) in files.items()}
    assert needs(UNEXPECTED, back) == {"lib.py": {"tests/test_lib.py", "train.py"}}, "callers stop before it goes"


def test_a_signature_that_asks_for_more_needs_its_callers() -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "lib.py": ("def sample(n): return n", "def sample(n, times): return n"),
        "train.py": ("sample(64)", "sample(64, times=512)"),
    }
    assert needs(NOT_GIVEN, files) == {"lib.py": {"train.py"}}


@pytest.mark.parametrize(
    "taken", ["class Wide:\n def __init__(self, times): pass", "@dataclass\nclass Wide:\n times: int = 1"]
)
def test_the_error_says_whose_argument_it_is(taken: str) -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "narrow.py": (None, "class Narrow:\n def __init__(self, times): pass"),
        "train.py": ("Wide()", "Wide(times=512)"),
        "wide.py": (None, taken),
    }
    assert needs(OF_A_CLASS, files) == {"train.py": {"wide.py"}}


@pytest.mark.parametrize("binding", ["ROWS, WHY = f()", "a, (\n b,\n ROWS,\n) = f()", "def f():\n global ROWS"])
def test_every_assignment_binds_and_prose_does_not(binding: str) -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "README.md": ("Notes.", "Set by the global `ROWS` = 3, import ROWS"),
        "comment.py": ("x = 1", "x = 1  # for all ROWS\n"),
        "tiny/conf.py": ("WHY = 1", binding),
        "other/conf.py": ("WHY = 1", "ROWS = 1"),
    }
    imported = {**files, "train.py": ("", "from tiny.conf import ROWS"), "more.py": ("", "from tiny.conf import ROWS")}
    assert needs(IMPORT, imported) == {"train.py": {"tiny/conf.py"}, "more.py": {"tiny/conf.py"}}
    assert needs(ATTRIBUTE, {**files, "train.py": ("", "f(conf.ROWS)")}) == {"train.py": {"tiny/conf.py"}}


def test_members_and_modules() -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "narrow.py": (None, "class Narrow:\n def f(self): self.rows = 1"),
        "train.py": ("", "f(model.rows)"),
        "wide.py": (None, "class Wide:\n def f(self): self.a, self.rows = 1, 2"),
    }
    assert needs(MEMBER, files) == {"train.py": {"wide.py"}}
    new: dict[str, tuple[str | None, str | None]] = {
        "tiny/conf.py": (None, "x = 1"),
        "train.py": ("", "import tiny.conf"),
    }
    assert needs(MODULE, new) == {"train.py": {"tiny/conf.py"}}


def test_a_name_refers_to_what_binds_it_nearest_in_its_file() -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "conf.py": (None, "ROWS = 1"),
        "broken.py": ("", "ROWS = = 1"),
        "train.py": ("", "f(ROWS)"),
        "local.py": ("", "def f(ROWS): return ROWS"),
    }
    assert needs(GLOBAL, files) == {"local.py": {"local.py"}, "train.py": {"conf.py"}}


def test_other_errors_name_nothing() -> None:
    assert missing_name("RuntimeError: Expected target size [8, 513], got [8, 512]") is None
