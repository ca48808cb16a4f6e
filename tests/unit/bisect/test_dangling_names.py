"""A name that nothing binds is seen, and in doubt none is: what might run is never refused."""

from __future__ import annotations

import pytest

from oomscope.bisect.dangling_names import dangling

PARTS = (
    ("def forward(x, wide):", "def forward(x):"),
    ("    h = attend(x, wide=wide)", "    h = attend(x)"),
    ("    return h if wide else x", "    return h"),
)


def source(*made: bool) -> bytes:
    lines = [new if is_made else old for is_made, (new, old) in zip(made, PARTS, strict=True)]
    return "\n".join(["def attend(x, wide=False):", "    return x", "", *lines, ""]).encode()


@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)])
def test_an_argument_that_was_never_handed_on_is_seen(used: tuple[bool, bool]) -> None:
    assert dangling(source(False, *used)) == {("forward", "wide")}
    assert dangling(source(True, *used)) == frozenset()


def test_methods_and_what_runs_in_any_case_are_looked_into() -> None:
    text = (
        "class A:\n    def f(self):\n        if gone(1):\n            pass\n        for x in other:\n            pass\n"
    )
    assert dangling(text.encode()) == {("A.f", "gone"), ("A.f", "other")}


@pytest.mark.parametrize(
    "text",
    [
        "from x import *\ndef f(): return gone",
        "globals()['gone'] = 1\ndef f(): return gone",
        "exec('gone = 1')\ndef f(): return gone",
        "import sys\nsetattr(sys.modules[__name__], 'gone', 1)\ndef f(): return gone",
        "def f(x):\n    if x:\n        return gone",
        "def f(x): return x and gone",
        "def f(x): return gone if x else 0",
        "def f(x):\n    if x: return 0\n    return gone",
        "def f(x):\n    while x: raise ValueError\n    return gone",
        "def f():\n    try:\n        gone\n    except NameError: pass",
        "def f():\n    with suppress(NameError): gone\nfrom contextlib import suppress",
        "def f():\n    for x in (): gone",
        "def f(): return lambda: gone",
        "def f(): return [gone for _ in ()]",
        "def f():\n    def inner(): return gone\n    return inner",
        "def f():\n    x: gone = 1",
        "def f(): return gone\ndef g():\n    global gone\n    gone = 1",
        "def f(): return gone\nif f:\n    gone = 1",
        "for gone in (): pass\ndef f(): return gone",
        "import gone.a\ndef f(): return gone",
        "def f(): return __file__, __name__, print, WindowsError if 0 else 1",
        "class A:\n    def f(self): return __class__, super()",
        "def f(gone):\n    def g(): return gone\n    return g",
        "def f(): return 1 < 2 < gone",
        "try:\n    def f(): return gone\nexcept E: pass",
        "@kernel\ndef f(): return gone\nkernel = print",
        "def f(): return gone\ndef f(): return 1",
        "match 1:\n    case gone: pass\ndef f(): return gone",
        "def f(): return (gone := 1)",
        "gone: int = 1\ndef f(): return gone",
    ],
)
def test_in_doubt_nothing_is_said(text: str) -> None:
    assert dangling(text.encode()) == frozenset()


def test_it_knows_nothing_wrong_of_real_code() -> None:
    """Every module of the standard library's json and of oomscope's own search runs."""
    import json
    from pathlib import Path

    import oomscope.bisect

    files = [*Path(json.__file__).parent.glob("*.py"), *Path(oomscope.bisect.__file__).parent.glob("*.py")]
    assert len(files) > 50
    assert {file.name: found for file in files if (found := dangling(file.read_bytes()))} == {}
