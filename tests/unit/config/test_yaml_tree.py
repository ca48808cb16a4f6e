"""The safe subset of YAML: values as safe_load gives them, lines, bounds, and nothing executed."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.problems import InvalidConfigError
from oomscope.config.yaml_tree import MAX_BYTES, MAX_DEPTH, Items, Mapping, Scalar, read_yaml


def value_of(text: str) -> object:
    tree, problems = read_yaml(text, "f")
    assert problems == []
    return tree.value


def refusal(data: str | bytes) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        read_yaml(data, "f")
    return str(caught.value)


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in read_yaml(text, "f")[1]]


# PyYAML dumps text such as 1e4 without quotes, for to it that is no number; here it is one (YAML 1.2).
BARE_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")
TEXT = st.text(max_size=12).filter(lambda text: not BARE_EXPONENT.fullmatch(text))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT.filter(bool), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_what_yaml_dumps_is_read_back(value: object) -> None:
    assert value_of(yaml.safe_dump(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-2.5E+3", -2500.0),
        ("1_000", 1000),
        ("0x10", 16),
        ("yes", True),
        ("~", None),
        ("'8'", "8"),
        ("12:30", "12:30"),
        ("2026-01-02", "2026-01-02"),
        ("007", "007"),
        ("0o10", "0o10"),
        ("none", "none"),
        ("1.2.3", "1.2.3"),
        ("[1, a]", [1, "a"]),
        ("", None),
    ],
)
def test_scalars(text: str, value: object) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_lines() -> None:
    tree, _ = read_yaml("a: 1\nb:\n  - x\n\n  - y\n", "f")
    assert isinstance(tree, Mapping)
    (line_a, a), (line_b, b) = tree.entries["a"], tree.entries["b"]
    assert (line_a, a, line_b) == (1, Scalar(1, "1", 1), 2)
    assert isinstance(b, Items)
    assert [item.line for item in b.items] == [3, 5]


def test_bom_is_no_part_of_the_first_key() -> None:
    assert read_yaml(b"\xef\xbb\xbfa: 1", "f")[0].value == {"a": 1}
    assert value_of("\ufeffa: 1") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", 'f:2: "a" is given twice (first in line 1); keep one of them'),
        ("a: 1\n2: 2", 'f:2: "2" is no key; keys are names'),
        ("? [a]\n: 2", "f:1: a list or mapping is no key; keys are names"),
        (
            "a: !!python/name:os.system x",
            'f:1: the tag "tag:yaml.org,2002:python/name:os.system" is not allowed; write plain values',
        ),
        ("a: !!set {b}", 'f:1: the tag "tag:yaml.org,2002:set" is not allowed; write plain values'),
        ("a: !!int b", 'f:1: "b" cannot be read as a number'),
        ("a: !!bool maybe", 'f:1: "maybe" cannot be read as a number'),
        ("<<: 3", "f:1: << needs a mapping"),
    ],
)
def test_problems_that_do_not_stop_the_reading(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_merge_keys() -> None:
    assert value_of("x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], c: 3}")["z"] == {"a": 1, "b": 1, "c": 3}  # type: ignore[index]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "a: [1",
            "f:1: not YAML: expected ',' or ']', but got '<stream end>' while parsing a flow sequence; fix the line",
        ),
        ("a: 1\n b: 2", "f:2: not YAML: mapping values are not allowed here; fix the line"),
        ("a: *b", "f:1: not YAML: found undefined alias 'b'; fix the line"),
        (
            "\ta: 1",
            (
                "f:1: not YAML: found character '\\t' that cannot start any token while scanning for the next token; "
                "fix the line"
            ),
        ),
        ("a\n---\nb", "f:2: more than one YAML document; keep one"),
        ("a: 1\n\x07", "f:2: not text: control character U+0007; give a YAML file in UTF-8"),
        (b"a: 1\n\xff", "f:2: not text: byte 0xff is not UTF-8; give a YAML file in UTF-8"),
        (b"\xff\xfea\x00", "f:1: not text: byte 0xff is not UTF-8; give a YAML file in UTF-8"),
    ],
)
def test_syntax_errors_in_one_line(data: str | bytes, message: str) -> None:
    assert refusal(data) == message


def test_depth_is_bounded() -> None:
    assert value_of("[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1))
    assert f"nested more than {MAX_DEPTH} deep" in refusal("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
    assert f"nested more than {MAX_DEPTH} deep" in refusal("[" * (MAX_BYTES // 2))
    assert f"nested more than {MAX_DEPTH} deep" in refusal("&a [*a]")


def test_aliases_cannot_multiply_without_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    assert "more than 5000 keys and values" in refusal("\n".join(lines))
    assert "more than 5000 keys and values" in refusal("[" + "1," * 5000 + "]")


def test_size_is_bounded() -> None:
    assert "larger than 256 KiB" in refusal("#" * (MAX_BYTES + 1))


def test_huge_number_is_refused_in_one_line() -> None:
    message = problems_of("a: " + "9" * 5000)[0]
    assert message.endswith("cannot be read as a number")
    assert len(message) < 120
