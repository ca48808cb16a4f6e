"""The picture of an explained snapshot, and the one line where it cannot be drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import pytest

from oomscope.errors import UsageError
from oomscope.report import explain_png
from oomscope.snapshot.drawing.bins import Bins

from . import drawn


def test_a_picture_has_a_panel_for_the_timeline_and_one_for_the_segments():
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    found, drawings = drawn.explained(drawn.failing())
    both = explain_png.explain_picture(found, drawings)
    assert both.startswith(b"\x89PNG")
    only = explain_png.explain_picture(found, [replace(drawings[0], plan=None)])
    width, height = (int.from_bytes(both[at : at + 4], "big") for at in (16, 20))
    assert width == int.from_bytes(only[16:20], "big")
    assert height > int.from_bytes(only[20:24], "big")


def test_the_picture_has_the_colours_of_the_page():
    css = (resources.files("oomscope.report") / "templates" / "explain.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): (#\w{6})", css.partition("@media")[0]))
    colours = {name.replace("_", "-"): colour for name, colour in explain_png.COLOURS.items()}
    assert {name: colours[name] for name in light} == light
    assert set(colours) - set(light) == {"pending"}


def test_nothing_to_draw_is_said():
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    found, (drawing,) = drawn.explained(drawn.failing())
    empty = Bins(**{name: value[:0] if hasattr(value, "ndim") else value for name, value in vars(drawing.bins).items()})
    with pytest.raises(UsageError, match="nothing to draw"):
        explain_png.explain_picture(found, [replace(drawing, bins=empty, plan=None)])


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(explain_png, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib") as refused:
        explain_png.require_matplotlib()
    assert "pip install 'oomscope[plots]'" in str(refused.value)
