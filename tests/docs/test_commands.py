"""Every block of commands in the README and in the pages is run, or says why it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.docs.blocks import PAGES, ROOT, Block, Command, blocks_of, strays
from tests.docs.running import carry_out, difference

TORCH = "2.15"
"""Whose operations and allocator rules the bytes in the pages are."""

BLOCKS = {str(page.relative_to(ROOT)): blocks_of(page) for page in PAGES}
RUN = {page: run for page, blocks in BLOCKS.items() if (run := [block for block in blocks if block.is_run])}
NOT_RUN = [block for blocks in BLOCKS.values() for block in blocks if block.not_run]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_do_what_it_says(page: str, place: Path, capsys) -> None:
    wrong = [
        said for block in RUN[page] for command in block.commands if (said := what_is_wrong(block, command, capsys))
    ]
    assert not wrong, "\n\n".join(wrong)


def what_is_wrong(block: Block, command: Command, capsys) -> str | None:
    """Run a command; say what it did that the page does not say."""
    done = carry_out(command.text, capsys, is_shown=command.shown is not None)
    at = f"{block.name}: {command.text}"
    if done.code != block.exit_code:
        return f"{at}\nends with {done.code}\n{done.remarks}"
    if command.shown is None or not torch.__version__.startswith(TORCH):
        return None
    missing = difference(done.printed, command.shown)
    return None if missing is None else f"{at}\nprints\n{done.printed}\nwhere the page has\n{missing}"


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.name)
def test_a_block_that_is_not_run(block: Block) -> None:
    pytest.skip(f"{block.name}: {block.not_run}")


@pytest.mark.parametrize("page", BLOCKS)
def test_what_is_said_of_blocks_is_understood(page: str) -> None:
    assert [block.name for block in BLOCKS[page] if not block.is_understood] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_stands_outside_a_block_of_commands(page: Path) -> None:
    assert strays(page.read_text(encoding="utf-8")) == []
