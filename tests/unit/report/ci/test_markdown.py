"""Other people's text comes out of a real Markdown parser as it went in, and a document keeps to its bytes."""

from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from oomscope.printable import printable
from oomscope.report.ci.github import block, code, escaped, fitted, head, row

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
TEXT = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("`|*_<>&[]()#!\\~-+1. \n@$", max_size=20)


def words(text: str) -> str:
    return " ".join(printable(text).split())


def cells(markdown: str) -> list[list[str]]:
    rendered = PARSER.render(markdown)
    rows = re.findall(r"<tr>(.*?)</tr>", rendered, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", each, re.DOTALL) for each in rows]


@given(TEXT)
def test_escaped_text_is_a_paragraph_of_itself(text: str) -> None:
    rendered = PARSER.render(f"{escaped(text)}\n")
    assert "<" not in rendered.removeprefix("<p>").replace("</p>", "")
    assert html.unescape(re.sub(r"</?p>", "", rendered)).strip().replace("@\u200b", "@") == words(text)


@given(TEXT, TEXT)
def test_a_row_has_the_cells_that_it_was_given(first: str, second: str) -> None:
    table = head("One", ">Two") + row([escaped(first), code(second)])
    names, found = cells(table)
    assert names == ["One", "Two"]
    assert html.unescape(found[0]).replace("@\u200b", "@") == words(first)
    plain = html.unescape(re.sub(r"</?code>", "", found[1]))
    assert plain == words(second)
    assert (found[1] == "") == (words(second) == "")


@given(st.lists(TEXT, max_size=3))
def test_nothing_ends_a_block_of_code(lines: list[str]) -> None:
    rendered = PARSER.render(block(lines))
    assert rendered.startswith("<pre><code>")
    assert rendered.count("<") == 4


def test_no_user_is_mentioned() -> None:
    assert escaped("thanks @ada") == "thanks @\u200bada"


@given(st.text(max_size=5), st.lists(st.text(max_size=9), max_size=9), st.integers(0, 60))
def test_a_document_keeps_to_its_bytes(text: str, blocks: list[str], room: int) -> None:
    text, blocks = text.encode(errors="ignore").decode(), [each.encode(errors="ignore").decode() for each in blocks]
    found, left = fitted(text, blocks, room)
    assert found == text + "".join(blocks[: len(blocks) - left])
    assert len(found.encode()) <= max(room, len(text.encode()))
