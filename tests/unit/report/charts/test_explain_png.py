"""The picture of an explained snapshot, and the one line where it cannot be drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import pytest

from oomscope.errors import UsageError
from oomscope.report.charts import pictures, png
from oomscope.report.charts.segments import CATEGORIES
from oomscope.snapshot.explain.curves import Bins
from tests.unit.report import drawn


def test_a_picture_has_a_panel_for_the_timeline_and_one_for_the_segments():
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    found, drawings = drawn.explained(drawn.failing())
    both = pictures.explain_picture(found, drawings)
    assert both.startswith(b"\x89PNG")
    only = pictures.explain_picture(found, [replace(drawings[0], plan=None)])
    width, height = (int.from_bytes(both[at : at + 4], "big") for at in (16, 20))
    assert width == int.from_bytes(only[16:20], "big")
    assert height > int.from_bytes(only[20:24], "big")


def test_the_picture_has_the_colours_of_the_page():
    templates = resources.files("oomscope.report.html") / "templates"
    sheets = [(templates / f"{name}.css").read_text(encoding="utf-8") for name in ("explain", "report")]
    css = "".join(sheet.partition("@media (prefers")[0] for sheet in sheets)
    light = dict(re.findall(r"--([\w-]+): (#\w{6})", css))
    colours = {name.replace("_", "-"): colour for name, colour in png.COLOURS.items()}
    shared = set(colours) & set(light)
    assert {name: colours[name] for name in shared} == {name: light[name] for name in shared}
    assert {*CATEGORIES, "gap", "good", "bad", "warn"} == {name.replace("-", "_") for name in shared}


def test_nothing_to_draw_is_said():
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    found, (drawing,) = drawn.explained(drawn.failing())
    empty = Bins(**{name: value[:0] if hasattr(value, "ndim") else value for name, value in vars(drawing.bins).items()})
    with pytest.raises(UsageError, match="nothing to draw"):
        pictures.explain_picture(found, [replace(drawing, bins=empty, plan=None)])


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(png, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib") as refused:
        png.require_matplotlib()
    assert "pip install 'oomscope[plots]'" in str(refused.value)
