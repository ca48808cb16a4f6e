"""What is found in a page."""

from __future__ import annotations

import pytest

from tests.docs.blocks import Command, blocks, strays
from tests.docs.running import difference

PAGE = """\
Words.

```console
oomscope probe a.yaml   # a remark
oomscope bisect a..b \\
    --limit 1GiB
```

<!-- exits 3 -->
```console
$ oomscope probe b.yaml \\
    --quiet
OUT OF MEMORY
...
$ cd folder
```

<!-- not run: needs a GPU -->
```console
oomscope probe c.yaml
```

```yaml
cases: []
```
"""


def test_commands_and_what_they_print() -> None:
    first, second, third = blocks(PAGE, "page.md")
    assert [command.text for command in first.commands] == [
        "oomscope probe a.yaml   # a remark",
        "oomscope bisect a..b      --limit 1GiB",
    ]
    assert second.commands == (
        Command(text="oomscope probe b.yaml --quiet", shown="OUT OF MEMORY\n...\n"),
        Command(text="cd folder"),
    )
    assert (first.exit_code, second.exit_code) == (0, 3)
    assert (first.is_run, second.is_run, third.is_run) == (True, True, False)
    assert third.not_run == "needs a GPU"
    assert [block.name for block in (first, second, third)] == ["page.md:4", "page.md:11", "page.md:20"]


@pytest.mark.parametrize("remark", ["not run: too hard", "run by tests/nowhere.py", "exit 3", "skip"])
def test_a_remark_that_nobody_knows_is_none(remark: str) -> None:
    (block,) = blocks(f"<!-- {remark} -->\n```console\noomscope\n```\n", "page.md")
    assert not block.is_understood


def test_commands_in_a_block_of_no_language_are_found() -> None:
    assert strays("```\noomscope probe a.yaml\n```\n\n```text\nprobe\n```\n") == ["oomscope probe a.yaml"]


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("a b (2.0 s)\nc\n", None),
        ("a   b\nc\n", None),
        ("a b\n...\n", None),
        ("...\nc\n", None),
        ("a b\n", "c"),
        ("a\nd\n", "a d"),
        ("...\nc\na\n", "c a"),
    ],
)
def test_what_is_printed_is_held_against_what_is_shown(shown: str, missing: str | None) -> None:
    found = difference("a b (1.5 s)\nc\n", shown)
    assert (found is None) == (missing is None)
    assert found is None or found.strip() == missing
