"""Documents between two documents."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.changes.yaml_leaves import differing, mixed, read_leaves
from oomscope.errors import InputError

GOOD = b"model: {width: 8, depth: 2}\ndata:\n  files: [a, b]\nname: x # comment\n"
BAD = b"model: {width: 16, depth: 2, extra: {}}\ndata:\n  files: [a]\n"


def test_leaves_that_differ_or_are_missing() -> None:
    good, bad = read_leaves(GOOD, "c.yaml"), read_leaves(BAD, "c.yaml")
    assert differing(good, bad) == (("model", "width"), ("data", "files"), ("name",), ("model", "extra"))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text("aü 1:#'\"-{\n", max_size=4)
    | st.lists(st.integers(), max_size=2)
)
documents = st.dictionaries(
    st.sampled_from("abcd"), scalars | st.dictionaries(st.sampled_from("xyz"), scalars, max_size=3), max_size=4
)


@given(documents, documents, st.sampled_from(["c.yaml", "c.json"]))
def test_no_change_is_the_good_document_and_all_changes_are_the_bad_one(
    good: dict[str, object], bad: dict[str, object], path: str
) -> None:
    leaves = [read_leaves(json.dumps(document, ensure_ascii=False).encode(), path) for document in (good, bad)]
    for document, changed in ((good, set()), (bad, set(differing(*leaves)))):
        assert yaml.safe_load(mixed(leaves[0], leaves[1], changed, path)) == document


@pytest.mark.parametrize("content", [b"a: [", b"- 1\n", b"", b"\xff\xfe", b"1: 2\n", b"!!python/object:os.x {}\n"])
def test_what_is_no_document_of_leaves_is_one_line(content: bytes) -> None:
    with pytest.raises(InputError, match=r"c\.yaml"):
        read_leaves(content, "c.yaml")


@pytest.mark.parametrize("content", [b"a: &a {b: 1, c: *a}\n", b"a: &a [1, *a]\n", b"&top {a: {b: *top}}\n"])
def test_an_alias_inside_what_it_names_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="an alias refers to a value that contains it"):
        read_leaves(content, "c.yaml")


def test_a_leaf_where_the_other_document_has_a_mapping() -> None:
    good, bad = read_leaves(b"a: 1\n", "c.yaml"), read_leaves(b"a: {b: 2}\n", "c.yaml")
    with pytest.raises(InputError, match="a leaf and a mapping"):
        mixed(good, bad, {("a", "b")}, "c.yaml")
    assert yaml.safe_load(mixed(good, bad, {("a",), ("a", "b")}, "c.yaml")) == {"a": {"b": 2}}


def test_json_is_read_and_written_as_json() -> None:
    good, bad = (
        read_leaves(content, "c.json") for content in (b'{"lr": 1e5}', b'{"lr": 2e5, "name": "\\ud83d\\ude00"}')
    )
    assert good == {("lr",): 1e5}
    text = mixed(good, bad, {("name",)}, "c.json")
    assert json.loads(text) == {"lr": 1e5, "name": "\N{GRINNING FACE}"}
