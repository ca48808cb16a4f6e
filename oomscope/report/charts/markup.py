"""Elements of a chart in a page: every text passes through ElementTree, which escapes it."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.printable import printable


def box(parent: ET.Element, name: str, text: str = "", tag: str = "span", **style: str) -> ET.Element:
    """Add an element with the CSS class ``name`` and the given styles (``_`` for ``-``)."""
    attributes = {"class": name}
    if style:
        attributes["style"] = ";".join(f"{key.replace('_', '-')}:{value}" for key, value in style.items())
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def figure(name: str, title: str) -> ET.Element:
    """Return an empty chart of the CSS class ``name``; ``title`` is what it is called where it cannot be seen."""
    return ET.Element("figure", {"class": name, "aria-label": title})


def share(part: float, whole: float) -> str:
    """Return ``part`` of ``whole`` as CSS says it: ``12.34%``."""
    return f"{100 * part / whole:.2f}%"


def embedded(document: dict[str, Any]) -> Markup:
    """Return JSON for a script element, which nothing in it can end; texts are without control characters."""
    text = json.dumps(_harmless(document), separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no tag can begin


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _harmless(each) for key, each in value.items()}
    return [_harmless(each) for each in value] if isinstance(value, list | tuple) else value


def markup(element: ET.Element) -> Markup:
    """Return an element as it stands in a page."""
    return Markup(ET.tostring(element, encoding="unicode", short_empty_elements=False))  # noqa: S704 - every text is escaped
