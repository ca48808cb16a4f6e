"""Every link of a page leads to a file that is there, and to a heading that is in it; every page is on the map."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oomscope.cli.main import COMMANDS
from tests.docs.blocks import PAGES, ROOT

LINK = re.compile(r"\]\((?!https?:)([^)\s]*)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
PAGE_OF = {
    "doctor": "troubleshooting.md",
    "replay": "diff.md",
    "sweep": "advise.md",
    "completion": "cli.md",
    "main": "cli.md",
}
"""Pages that are not called like their commands."""


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of ``page``."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def leads_nowhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    assert [link for link in LINK.findall(prose) if leads_nowhere(page, link)] == []


@pytest.mark.parametrize("command", [*COMMANDS, "main"])
def test_every_command_has_a_page_on_the_map(command: str) -> None:
    page = PAGE_OF.get(command, f"{command}.md")
    assert (ROOT / "docs" / page).is_file()
    assert f"]({page})" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


def test_every_page_is_on_the_map() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    there = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    chapters = {page for page in there if page.startswith("ci/")} - {"ci/README.md"}
    assert sorted(page for page in there - chapters - {"README.md"} if f"]({page})" not in text) == []
